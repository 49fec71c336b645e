"""Phi-4-mini: `functools[{"name": ..., "arguments": {...}}]`."""

from __future__ import annotations

from gateway.compat.cursor import Cursor
from gateway.compat.formats.base import SPACED, Format, ParsedCall, one_of, read_calls
from gateway.compat.offered import Offered


class Phi4MiniJson(Format):
    name = "phi4_mini_json"
    markers = ("functools[",)
    closers = ("]",)

    def follow(self, marker: str) -> str:
        return SPACED + one_of("{")

    def read(self, cursor: Cursor, tools: Offered) -> list[ParsedCall]:
        cursor.expect("functools[")
        cursor.pos -= 1
        return read_calls(cursor, tools)
