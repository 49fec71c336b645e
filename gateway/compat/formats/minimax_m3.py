"""MiniMax M3: as M2, every tag behind `]<]minimax[>[`, and each argument in a tag of its own name."""

from __future__ import annotations

from typing import Any

from gateway.compat.cursor import Cursor
from gateway.compat.formats.base import NAMED, SPACED, Format, ParsedCall, literal, make_call, read_name, several
from gateway.compat.formats.tagged import read_key
from gateway.compat.offered import Offered

PREFIX = "]<]minimax[>["
OPEN, CLOSE = f"{PREFIX}<tool_call>", f"{PREFIX}</tool_call>"
INVOKE, INVOKE_END = f'{PREFIX}<invoke name="', f"{PREFIX}</invoke>"
ARGUMENT, ARGUMENT_END = f"{PREFIX}<", f"{PREFIX}</"


class MinimaxM3(Format):
    """The wrapper may be missing."""

    name = "minimax_m3"
    markers = (OPEN, INVOKE)
    closers = (CLOSE, INVOKE_END)

    def follow(self, marker: str) -> str:
        return NAMED if marker == INVOKE else SPACED + literal(INVOKE) + NAMED

    def read(self, cursor: Cursor, tools: Offered) -> list[ParsedCall]:
        if not cursor.skip(OPEN):
            return [self._call(cursor, tools)]
        cursor.space()
        return several(cursor, lambda: self._call(cursor, tools), lambda: cursor.close(CLOSE))

    def _call(self, cursor: Cursor, tools: Offered) -> ParsedCall:
        cursor.expect(INVOKE)
        name = read_name(cursor, tools)
        cursor.expect('">')
        arguments: dict[str, Any] = {}
        while not cursor.close(INVOKE_END, torn=len(ARGUMENT_END)):
            cursor.space()
            cursor.expect(ARGUMENT)
            key = read_key(cursor, ">")
            arguments[key] = tools.typed(name, key, self._value(cursor, f"{ARGUMENT_END}{key}>"))
        return make_call(cursor, name, arguments)

    def _value(self, cursor: Cursor, end: str) -> str:
        start = cursor.pos
        found = cursor.text.find(end, start)
        if found < 0:
            cursor.short()
        cursor.pos = found + len(end)
        return cursor.text[start:found]
