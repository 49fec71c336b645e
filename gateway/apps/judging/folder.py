"""The folder of `gateway batch run`: the input, and for each judge its state and its answers.

`input.jsonl`: the lines as they were given. `NAME.json`: `{alias, input, file, batch, status}`. `NAME.output.jsonl` and
`NAME.errors.jsonl`: the files of the batch. NAME is the alias with odd characters replaced.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

INPUT = "input.jsonl"
LINE_MOST = 64 * 1024 * 1024  # bytes
_ODD = re.compile(r"[^\w.-]")


class FolderError(Exception):
    """The folder or a file in it is broken; the text says how."""


@dataclass(slots=True)
class JudgeState:
    """How far the batch of one alias is. `input`: SHA-256 of the lines; `file` and `batch`: their names at the gateway;
    "" = not begun."""

    alias: str
    input: str
    file: str = ""
    batch: str = ""
    status: str = ""

    @property
    def name(self) -> str:
        return _ODD.sub("_", self.alias)

    def output(self, folder: Path) -> Path:
        return folder / f"{self.name}.output.jsonl"

    def errors(self, folder: Path) -> Path:
        return folder / f"{self.name}.errors.jsonl"

    def save(self, folder: Path) -> None:
        path = folder / f"{self.name}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=2) + "\n")
        os.replace(part, path)


def judges_in(folder: Path) -> list[JudgeState]:
    """Raises FolderError."""
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}: `gateway batch run` makes it")
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(JudgeState(**json.loads(path.read_text())))
        except (ValueError, TypeError, OSError, RecursionError) as error:
            raise FolderError(f"{path} cannot be read: {error}") from None
    return found


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines. Raises FolderError with the line."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_MOST):
                number += 1
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise FolderError(f"{path}:{number}: not JSON: {error}") from None
                if not isinstance(row, dict):
                    raise FolderError(f"{path}:{number}: not a JSON object")
                yield row
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error}") from None


def answer_of(row: dict[str, Any]) -> str | None:
    """The text of an output row's first choice; None where it has none."""
    try:
        choice = row["response"]["body"]["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError):
        return None
    return text if isinstance(text, str) else None


def question_of(row: dict[str, Any]) -> str:
    """The last message of an input line, as text; "" where it has none."""
    body = row.get("body", row)
    messages = body.get("messages") if isinstance(body, dict) else None
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
