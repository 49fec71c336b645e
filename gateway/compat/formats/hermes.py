"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, LongCat (other tag)."""

from __future__ import annotations

from gateway.compat.cursor import Cursor
from gateway.compat.formats.base import JSON_CALLS, Format, ParsedCall, read_calls
from gateway.compat.offered import Offered


class Hermes(Format):
    """A JSON object (or a list of them) in a tag. The closing tag may be missing."""

    def __init__(self, name: str = "hermes", tag: str = "tool_call") -> None:
        self.name = name
        self._open, self._close = f"<{tag}>", f"</{tag}>"
        self.markers = (self._open,)
        self.closers = (self._close,)

    def follow(self, marker: str) -> str:
        return JSON_CALLS

    def read(self, cursor: Cursor, tools: Offered) -> list[ParsedCall]:
        cursor.expect(self._open)
        cursor.space()
        calls = read_calls(cursor, tools)
        cursor.close(self._close)
        return calls
