"""Phi-4-mini: `functools[{"name": ..., "arguments": {...}}]`."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import SPACED, Format, ParsedCall, one_of, read_calls
from gateway.inspection.offered_tools import OfferedTools


class Phi4MiniJson(Format):
    name = "phi4_mini_json"
    markers = ("functools[",)
    closers = ("]",)

    def follow(self, marker: str) -> str:
        return SPACED + one_of("{")

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        cursor.expect("functools[")
        cursor.pos -= 1
        return read_calls(cursor, tools)
