"""Mistakes in routes.yaml, worded so that a person can correct them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, TypeVar

from gateway.config.secret import without_credentials
from gateway.printable import visible
from gateway.shortage import WORDS, Kind

Path = tuple[str | int, ...]  # of a key in the file
# File -> a digest of what was read; None = there is no such file, or it cannot be read.
Digests = Mapping[FilePath, bytes | None]
SHORTEST_HIDDEN = 6  # characters; replacing shorter texts would garble the messages


def dotted(path: Path) -> str:
    """`("aliases", "reviewer", "use", 0)` → `aliases.reviewer.use`: the line says which member of a list is meant."""
    return ".".join(part for part in path if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. `line` counts from 1; None = the whole file. `path` is empty for mistakes of the YAML itself. As a
    string it is one line without control characters, whatever the file holds. Credentials of a URL are left out: a URL
    may stand where none belongs."""

    file: str
    line: int | None
    path: str
    message: str
    hint: str | None = None

    def __post_init__(self) -> None:
        for name in ("path", "message", "hint"):
            if (text := getattr(self, name)) is not None and "//" in text:
                object.__setattr__(self, name, without_credentials(text))

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


class Report:
    """Collects the problems of one load and knows which line each path was read from."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: Mapping[Path, int] = {}
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []
        self.dropped: set[Path] = set()
        self.outside: dict[Path, str] = {}  # where a variable or a file was used -> how it is written
        self._hidden: dict[str, str] = {}  # a value from outside -> how it is written

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
        """`value` at `path` holds a variable or a file, written as `source`. Messages name such values as
        `ExpandedText` does; this is the second net, for a value that lost its type on the way into a message."""
        self.outside[path] = source
        self.hide(value, source)

    def hide(self, value: str, source: str) -> None:
        """Show `source` wherever a problem of this file would show `value`."""
        if len(value) >= SHORTEST_HIDDEN and value not in source:
            self._hidden.setdefault(value, source)

    def _problem(self, path: Path, message: str, hint: str | None) -> Problem:
        for value in sorted(self._hidden, key=len, reverse=True):
            if value in message or (hint and value in hint):
                if self._is_a_key(value):
                    continue
                message = message.replace(value, self._hidden[value])
                hint = hint.replace(value, self._hidden[value]) if hint else None
        return Problem(self.file, self.line(path), dotted(path), message, hint)

    def _is_a_key(self, text: str) -> bool:
        """Whether the file itself shows the text, as the name of a backend or another key."""
        return any(text in path for path in self.lines)

    def written_as(self, path: Path, value: object) -> object:
        """What a message may show of `value`, which stands at `path`: a number knows no more that it was a variable."""
        return self.outside.get(path, value)

    def was_dropped(self, *path: str | int) -> bool:
        """True when the value at `path` was written but wrong: it has been reported, and causes no second problem."""
        return any(path[:end] in self.dropped for end in range(1, len(path) + 1))

    def lost(self, *path: str | int) -> bool:
        """True when the value at `path`, or something inside it, was written but wrong: it may be what is missing."""
        return self.was_dropped(*path) or any(one[: len(path)] == path for one in self.dropped)

    def renumber(self, removed: Iterable[Path]) -> None:
        """Members of lists were taken out at these paths, as they were before: the members behind them keep their
        lines under their new numbers."""
        gaps: dict[Path, list[int]] = {}
        for path in removed:
            if isinstance(path[-1], int):
                gaps.setdefault(path[:-1], []).append(path[-1])
        if not gaps:
            return
        for numbers in gaps.values():
            numbers.sort()
        lines: dict[Path, int] = {}
        for path, line in self.lines.items():
            if (moved := _moved(path, gaps)) is not None:
                lines[moved] = line
        self.lines = lines

    def finish(self) -> list[Problem]:
        """The warnings, in the order of their lines. Raises `ConfigError` when there was an error."""
        if self.errors:
            raise ConfigError(_by_line(self.errors))
        return _by_line(self.warnings)


def _moved(path: Path, gaps: Mapping[Path, list[int]]) -> Path | None:
    """The path once the members of lists in `gaps` are gone; None = it is one of them, or inside one."""
    moved: list[str | int] = []
    for at, part in enumerate(path):
        if isinstance(part, int) and (numbers := gaps.get(path[:at])):
            before = bisect_left(numbers, part)
            if before < len(numbers) and numbers[before] == part:
                return None
            part -= before
        moved.append(part)
    return tuple(moved)


def _by_line(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(dict.fromkeys(problems), key=lambda p: (p.file, p.line or 0))


Read = TypeVar("Read")


class Mistakes(ValueError):
    """What is wrong inside a value: the path below it, and the message as a kind of value words it."""

    def __init__(self, found: Sequence[tuple[Path, str]]) -> None:
        super().__init__(found[0][1])
        self.found = tuple(found)


def each(members: Iterable[tuple[str | int, Any]], read: Callable[[Any], Read]) -> list[Read]:
    """What `read` makes of each of the members, which are given with their index or key. Raises `Mistakes`."""
    made: list[Read] = []
    wrong: list[tuple[Path, str]] = []
    for place, value in members:
        try:
            made.append(read(value))
        except Mistakes as error:
            wrong += [((place, *path), message) for path, message in error.found]
        except ValueError as error:
            wrong.append(((place,), str(error)))
    if wrong:
        raise Mistakes(wrong)
    return made
