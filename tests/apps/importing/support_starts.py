"""What starts engines, converted, written and loaded."""

from __future__ import annotations

from textwrap import dedent

from gateway.apps.importing.import_command import STARTS
from gateway.apps.importing.output import render, verify_round_trip
from tests.apps.importing.support import DATA, Imported


def started(kind: str, text: str, file: str = "start", address: str | None = "spark1") -> Imported:
    """The imported file; what it holds has been loaded as the gateway would."""
    draft = STARTS[kind](dedent(text), file, address)
    written = render(draft)
    assert draft.backends, draft.notes
    return Imported(draft, written, verify_round_trip(written, draft, {}).snapshot)


def started_file(name: str, address: str | None = "spark1") -> Imported:
    kind = {"service": "systemd", "yaml": "compose", "sh": "shell"}[name.rsplit(".", 1)[-1]]
    return started(kind, (DATA / name).read_text(), name, address)


def notes_of(kind: str, text: str, file: str = "start", address: str | None = "spark1") -> list[str]:
    """`kind line path: message` of each note."""
    draft = STARTS[kind](dedent(text), file, address)
    return [f"{n.kind} {n.problem.line} {n.problem.path}: {n.problem.message}" for n in draft.notes]
