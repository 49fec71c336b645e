"""Mistral: `[TOOL_CALLS]NAME[ARGS]{...}`; older models `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`."""

from __future__ import annotations

from gateway.inspection.cursor import NAME, Cursor
from gateway.inspection.formats.base import (
    JSON_CALLS,
    NAMED,
    SPACED,
    Format,
    ParsedCall,
    make_call,
    read_calls,
    read_name,
    read_object,
)
from gateway.inspection.offered_tools import OfferedTools

OPEN, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class Mistral(Format):
    """`[CALL_ID]...` may stand before `[ARGS]`, and `[ARGS]` may be missing."""

    name = "mistral"
    markers = (OPEN,)
    closers = ("}", "}]", "\n]", " ]")

    def follow(self, marker: str) -> str:
        return f"{SPACED}{NAMED}|{JSON_CALLS}"

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        cursor.expect(OPEN)
        cursor.space()
        if cursor.at("[", "{"):
            return read_calls(cursor, tools, fit=True)
        name = read_name(cursor, tools)
        if cursor.skip_spaced(ID):
            match = NAME.match(cursor.text, cursor.pos)
            cursor.pos = match.end() if match else cursor.pos
        cursor.skip_spaced(ARGUMENTS)
        return [make_call(cursor, name, read_object(cursor), tools.fitted)]
