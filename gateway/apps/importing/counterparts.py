"""Settings of other gateways and what stands for them here, as data: counterparts.yaml, litellm.yaml."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from gateway.apps.importing.draft import Kind, Notes
from gateway.config.document import read_document
from gateway.config.problems import Path, Report

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
    rows = data_of("counterparts")[kind]
    return {
        key: (row.get("kind", NONE[0]), row["message"], row.get("hint"))
        for row in rows
        for key in row["keys"].get(section, ())
    }


def note_unread(
    notes: Notes, path: Path, keys: Iterable[str], known: Mapping[str, Counterpart], read: Container[str] = ()
) -> None:
    """A note for each of these keys of `path` but those that were `read`."""
    for key in keys:
        if key not in read:
            kind, message, hint = known.get(key, NONE)
            notes.add(kind, (*path, key), message, hint)
