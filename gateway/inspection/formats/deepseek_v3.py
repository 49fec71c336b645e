"""DeepSeek V3 and R1: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, then the arguments in a fenced block."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import (
    NAMED,
    SPACED,
    Format,
    ParsedCall,
    literal,
    make_call,
    read_name,
    read_object,
    several,
)
from gateway.inspection.offered_tools import OfferedTools

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


class DeepSeekV3(Format):
    """The wrapper may be missing, and so may the fence."""

    name = "deepseek_v3"
    markers: tuple[str, ...] = (CALLS, CALL)
    closers: tuple[str, ...] = (CALLS_END, CALL_END)
    _named = literal("function") + literal(SEPARATOR) + NAMED

    def follow(self, marker: str) -> str:
        return SPACED + literal(CALL) + self._named if marker == CALLS else self._named

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        if not cursor.skip(CALLS):
            return [self._call(cursor, tools)]
        cursor.space()
        return several(cursor, lambda: self._call(cursor, tools), lambda: cursor.close(CALLS_END))

    def _call(self, cursor: Cursor, tools: OfferedTools) -> ParsedCall:
        cursor.expect(CALL)
        name = self._head(cursor, tools)
        arguments = self._arguments(cursor)
        cursor.close(CALL_END)
        return make_call(cursor, name, arguments)

    def _head(self, cursor: Cursor, tools: OfferedTools) -> str:
        cursor.expect("function")
        cursor.expect(SEPARATOR)
        return read_name(cursor, tools)

    def _arguments(self, cursor: Cursor) -> dict[str, object]:
        fenced = cursor.skip_spaced("```json", "```")
        arguments = read_object(cursor)
        if fenced:
            cursor.close("```")
        return arguments
