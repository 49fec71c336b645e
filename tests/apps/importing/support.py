"""A source converted, written and loaded: what the tests of the formats look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from gateway.apps.importing.draft import Draft, ImportNote
from gateway.apps.importing.import_command import FORMATS
from gateway.apps.importing.output import render, verify_round_trip
from gateway.apps.importing.source import read_source
from gateway.config.snapshot import Snapshot

DATA = Path(__file__).parents[2] / "data" / "importing"


@dataclass
class Imported:
    """`text` is the routes.yaml, `snapshot` what the gateway makes of it."""

    draft: Draft
    text: str
    snapshot: Snapshot

    def note(self, path: str) -> ImportNote:
        """The only note about this path of the source."""
        (found,) = [note for note in self.draft.notes if note.problem.path == path]
        return found

    def steps(self, alias: str) -> list[list[str]]:
        return [list(step) for step in self.snapshot.aliases[alias].steps]


def imported(kind: str, text: str, file: str = "source.yaml") -> Imported:
    draft = FORMATS[kind](read_source(dedent(text), file))
    written = render(draft)
    return Imported(draft, written, verify_round_trip(written, draft, {}).snapshot)


def imported_file(kind: str, name: str) -> Imported:
    return imported(kind, (DATA / name).read_text(), name)
