"""The commands that the importer reads in a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.apps.importing.launches import Launches
from gateway.apps.importing.shell import Word
from gateway.apps.importing.shell_script import Script


class _Recorder(Script):
    """Keeps the words of every command."""

    def __init__(self) -> None:
        super().__init__(Launches("x.sh", lambda path: None, "spark1"), {}, "x")
        self.found: list[tuple[list[str], int]] = []

    def start(self, given: Sequence[Word | str], line: int, env: Mapping[str, str], read: Any = None) -> None:
        self.found.append(([word if isinstance(word, str) else word.text for word in given], line))
        super().start(given, line, env, read)


def commands_of(text: str) -> list[tuple[list[str], int]]:
    """(the words, the line) of each command, in the order in which a shell runs them."""
    recorder = _Recorder()
    recorder.read(text)
    return recorder.found
