"""Requests at a rate while something happens to the fleet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.machines.scene import HERE


class Trickle:
    """Requests at a rate, and what came of each."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows: list[dict[str, Any]] = []

    def so_far(self) -> int:
        """Requests that were answered."""
        return len(self.out.read_text().splitlines()) if self.out.exists() else 0

    def failed(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row.get("status") != 200 or row["end"] != "whole"]


@contextmanager
def trickle(folder: Path, aliases: str = "main,writer", rate: float = 3.0) -> Iterator[Trickle]:
    """Ends, and has its rows, when the block ends."""
    running = Trickle(folder / "trickle.jsonl")
    command = [sys.executable, str(HERE / "trickle.py"), str(running.out), "600", str(rate), aliases]
    process = subprocess.Popen(command)
    try:
        yield running
    finally:
        (folder / "trickle.jsonl.stop").touch()
        process.wait(150)
        running.rows = [json.loads(line) for line in running.out.read_text().splitlines()]
