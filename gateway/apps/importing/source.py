"""The other gateway's file as plain data, with the line of everything in it, and what stands for its settings here
(formats.yaml, counterparts.yaml, litellm.yaml)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from gateway.apps.importing.draft import Kind, Notes
from gateway.config.document import read_document
from gateway.config.problems import Path, Report
from gateway.config.units import number_of

MOST = 10**12  # the largest count in routes.yaml
_TRUE = frozenset(("true", "yes", "on"))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """`data` is the top-level mapping with merge keys (`<<`) resolved."""

    file: str
    data: dict[str, Any]
    report: Report

    def notes(self) -> Notes:
        return Notes(self.file, self.report.line)

    def place(self, path: Path, further: str = "") -> list[str]:
        """The comment of what was made of `path`: the file and its line."""
        line = self.report.line(path)
        return [f"{self.file}:{line}{further}"] if line else []

    def section(self, name: str) -> dict[str, Any]:
        """The mapping under a top-level key; empty when it is not there, or something else."""
        return mapping(self.data.get(name))


def read_source(text: str, file: str, *, last_counts: bool = False) -> SourceFile:
    """The mapping in a file. `last_counts`: of a key that stands there twice. Raises ConfigError for broken YAML."""
    report = Report(file)
    data = read_document(text, report, last_counts=last_counts)
    report.finish()
    return SourceFile(file, _merged(data or {}), report)


def _merged(value: Any) -> Any:
    """Resolves YAML 1.1's `<<: *anchor`, which these formats have and routes.yaml does not."""
    if isinstance(value, list):
        return [_merged(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    own = {key: _merged(inner) for key, inner in value.items() if key != "<<"}
    merged = _merged(value.get("<<"))
    bases = merged if isinstance(merged, list) else [merged]
    for base in bases:
        own = {**base, **own} if isinstance(base, dict) else own
    return own


# -- values of any type -----------------------------------------------------------------------------------------------


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str | None:
    """Text, or a number as text; None for anything else and for nothing but spaces."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value).strip() or None


def count_of(value: Any) -> int | None:
    """A whole number from 1 to MOST; None for anything else."""
    number = number_of(value)
    return int(number) if number is not None and 1 <= number <= MOST and number == int(number) else None


def scalar_of(value: Any) -> str | None:
    """`text_of`, and true and false as YAML has them."""
    return str(value).lower() if isinstance(value, bool) else text_of(value)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """The value with every text in it changed."""
    if isinstance(value, dict):
        return {key: each_text(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [each_text(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value


def is_true(value: Any) -> bool:
    """True, or YAML 1.1's `yes` and `on`, which our YAML reader returns as text."""
    return value is True or (isinstance(value, str) and value.strip().lower() in _TRUE)


# -- settings ---------------------------------------------------------------------------------------------------------

Counterpart = tuple[Kind, str, str | None]  # kind of the note, message, hint
NONE: Counterpart = ("left_out", "has no counterpart here", None)


@cache
def data_of(name: str) -> Mapping[str, Any]:
    """The content of a data file beside this module."""
    text = FilePath(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    return read_document(text, Report(name)) or {}


@cache
def counterparts(kind: str, section: str) -> Mapping[str, Counterpart]:
    """The keys of a section of this format, but for those that have no counterpart."""
    rows = data_of("counterparts").get(kind, ())
    return {
        key: (row.get("kind", NONE[0]), row["message"], row.get("hint"))
        for row in rows
        for key in row["keys"].get(section, ())
    }


def note_unread(
    notes: Notes, path: Path, keys: Iterable[str], kind: str, section: str, read: Iterable[str] = (), like: str = ""
) -> None:
    """A note for each of these keys of `path` but those that are read: of this section, and `read`. `like`: the section
    that says with which words, where it is another one."""
    known, silent = counterparts(kind, like or section), {*data_of("formats")["read"][kind][section], *read}
    for key in keys:
        if key not in silent:
            note, message, hint = known.get(key, NONE)
            notes.add(note, (*path, key), message, hint)
