"""Calls in a fenced block, as models write them that were not trained on a notation of calls."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import Format, read_calls
from gateway.inspection.formats.pythonic import Olmo3
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.segments import Call

FENCE = "```"
_PYTHON = Olmo3()


class Fenced(Format):
    """A block of JSON, or of Python where its word says code, that ends the answer: with text behind it, it is an
    example. `words`: what may stand behind the opening fence."""

    closers = (FENCE,)
    only_at_end = True

    def __init__(self, name: str, words: tuple[str, ...], *, only_at_start: bool) -> None:
        self.name = name
        self.markers = tuple(f"{FENCE}{word}\n" for word in words)
        self.only_at_start = only_at_start

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[Call]:
        calls: list[Call] = []
        while not calls or cursor.at(*self.markers):
            code = "code" in (cursor.at(*self.markers) or "")
            cursor.expect(*self.markers)
            cursor.space()
            while not (calls and cursor.close(FENCE)):
                calls += (
                    [self._python(cursor, tools)] if code and cursor.at("{", "[") is None else read_calls(cursor, tools)
                )
                cursor.space()
            cursor.space()
        if cursor.pos < len(cursor.text):
            cursor.fail(cursor.pos + 1)
        if not cursor.final:
            cursor.short()
        return calls

    def _python(self, cursor: Cursor, tools: OfferedTools) -> Call:
        printed = cursor.skip("print(")
        cursor.skip("default_api.")
        call = _PYTHON.read_call(cursor, tools)
        if printed:
            cursor.expect(")")
        return call
