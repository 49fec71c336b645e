"""Olmo 3: Python calls, one a line, in `<function_calls>`."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, SPACED, ParsedCall, several
from gateway.inspection.formats.pythonic import Pythonic
from gateway.inspection.offered_tools import OfferedTools

OPEN, CLOSE = "<function_calls>", "</function_calls>"


class Olmo3(Pythonic):
    """JSON's true, false and null are accepted too."""

    name = "olmo3"
    markers = (OPEN,)
    closers = (CLOSE, ")")
    only_at_start = False

    def follow(self, marker: str) -> str:
        return SPACED + NAMED

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        cursor.expect(OPEN)
        cursor.space()
        return several(cursor, lambda: self._call(cursor, tools), lambda: cursor.close(CLOSE))
