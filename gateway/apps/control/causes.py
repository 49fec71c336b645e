"""The likely cause of a trouble by an engine's last words, and what mends it. The words are data: causes.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gateway.apps.control.unit_commands import Unit


@dataclass(frozen=True, slots=True)
class Cause:
    """A row of causes.toml. `line`: the one that shows it."""

    cause: str
    mend: str
    final: bool
    line: str = ""


def cause_of(words: Iterable[str], backend: str, unit: Unit) -> Cause | None:
    """What these lines of an engine mean; None where nothing is known of them. The last line that means something wins,
    but what is said to be the engine's core dying is the effect of a line before it."""
    names = {"backend": backend, "unit": unit.name, "target": unit.target, "node": unit.node}
    found = [(at, row, line) for line in words for at, (_, row) in enumerate(_rows()) if _rows()[at][0].search(line)]
    if not found:
        return None
    last = len(_rows()) - 1  # the general row
    _, row, line = next((one for one in reversed(found) if one[0] != last), found[-1])
    return Cause(_filled(row["cause"], names), _filled(row["mend"], names), bool(row.get("final")), line)


def _filled(text: str, names: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: names[found[1]], text)


@cache
def _rows() -> list[tuple[re.Pattern[str], dict[str, str]]]:
    data = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))
    return [(re.compile(row["match"], re.IGNORECASE), row) for row in data["causes"]]
