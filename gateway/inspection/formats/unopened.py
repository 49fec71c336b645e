"""A call whose opening tag a parser has taken out of the text: vLLM's Rust front end does so with each call that it
cannot read, so `{"name": ..., "parameters": {...}}</tool_call>` is left."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import SPACED, Format, ParsedCall, literal, one_of, read_calls
from gateway.inspection.formats.llama3_json import BARE
from gateway.inspection.offered_tools import OfferedTools

CLOSER = "</tool_call>"


class Unopened(Format):
    """A JSON object, or a list of them, as `llama3_json` writes it. It counts only with the closing tag right behind
    it, so that JSON in prose stays prose."""

    name = "unopened"
    markers = BARE
    closers = (CLOSER,)

    def follow(self, marker: str) -> str:
        return SPACED + literal(":") + SPACED + one_of('"{n')

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        calls = read_calls(cursor, tools)
        cursor.space()
        cursor.expect(CLOSER)
        return calls


UNOPENED = Unopened()
