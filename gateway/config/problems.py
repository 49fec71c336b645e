"""Mistakes in routes.yaml, worded so that a person can correct them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath

from gateway.printable import visible
from gateway.shortage import WORDS, Kind

Path = tuple[str | int, ...]  # of a key in the file
# File -> a digest of what was read; None = there is no such file, or it cannot be read.
Digests = Mapping[FilePath, bytes | None]
SHORTEST_SECRET = 6  # characters; hiding shorter ones would garble the messages


def dotted(path: Path) -> str:
    """`("aliases", "reviewer", "use", 0)` → `aliases.reviewer.use`: the line says which member of a list is meant."""
    return ".".join(part for part in path if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. `line` counts from 1; None = the whole file. `path` is empty for mistakes of the YAML itself. As a
    string it is one line without control characters, whatever the file holds."""

    file: str
    line: int | None
    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        what = f"{self.path}: {self.message}" if self.path else self.message
        return visible(f"{where}  {what}" + (f" - {self.hint}" if self.hint else ""))


class ConfigError(Exception):
    """The file was not loaded. `problems` holds every mistake that was found, in the order of their lines; `sources`
    are the files that were read, or were not there."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        self.sources: Digests = {}
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(str(p) for p in self.problems)


class NotRead(ConfigError):
    """The file could not be read because this process is short of `kind`: its content is unknown."""

    def __init__(self, file: str, kind: Kind) -> None:
        super().__init__([Problem(file, None, "", f"cannot be read: this process is short of {WORDS[kind]}")])
        self.kind: Kind = kind
        self.args = file, kind  # what it is made of again when it was pickled


class Report:
    """Collects the problems of one load and knows which line each path was read from."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: Mapping[Path, int] = {}
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []
        self.dropped: set[Path] = set()
        self.outside: list[tuple[Path, str, str]] = []

    def line(self, path: Path) -> int | None:
        """The line of `path`, or of the nearest thing around it that is written in the file; else None."""
        for end in range(len(path), 0, -1):
            if (found := self.lines.get(path[:end])) is not None:
                return found
        return None

    def error(self, path: Path, message: str, hint: str | None = None) -> None:
        self.errors.append(self._problem(path, message, hint))

    def warn(self, path: Path, message: str, hint: str | None = None) -> None:
        self.warnings.append(self._problem(path, message, hint))

    def came_from_outside(self, path: Path, value: str, source: str) -> None:
        """`value` at `path` was a variable or a file, written as `source`: problems there show only `source`."""
        if len(value) >= SHORTEST_SECRET:
            self.outside.append((path[:2], value, source))

    def _problem(self, path: Path, message: str, hint: str | None) -> Problem:
        for entry, value, source in self.outside:
            if path[:2] == entry:
                message = message.replace(value, source)
                hint = hint.replace(value, source) if hint else None
        return Problem(self.file, self.line(path), dotted(path), message, hint)

    def was_dropped(self, *path: str | int) -> bool:
        """True when the value at `path` was written but wrong: it has been reported, and causes no second problem."""
        return any(path[:end] in self.dropped for end in range(1, len(path) + 1))

    def finish(self) -> list[Problem]:
        """The warnings, in the order of their lines. Raises `ConfigError` when there was an error."""
        if self.errors:
            raise ConfigError(_by_line(self.errors))
        return _by_line(self.warnings)


def _by_line(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(dict.fromkeys(problems), key=lambda p: (p.file, p.line or 0))
