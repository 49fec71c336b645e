"""Kimi K2: `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>` in a section."""

from __future__ import annotations

import re

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import SPACED, Format, ParsedCall, literal, make_call, one_of, read_object, several
from gateway.inspection.offered_tools import OfferedTools

SECTIONS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
SECTION_ENDS = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"[^<|]{0,192}")
_COUNT = re.compile(r":\d+\Z")


class KimiK2(Format):
    """The section around the calls may be missing."""

    name = "kimi_k2"
    markers = (*SECTIONS, CALL)
    closers = (*SECTION_ENDS, CALL_END)

    def follow(self, marker: str) -> str:
        named = one_of("^<|")
        return named if marker == CALL else SPACED + literal(CALL) + named

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        if not cursor.skip(*SECTIONS):
            return [self._call(cursor, tools)]
        cursor.space()
        return several(cursor, lambda: self._call(cursor, tools), lambda: cursor.close(*SECTION_ENDS))

    def _call(self, cursor: Cursor, tools: OfferedTools) -> ParsedCall:
        cursor.expect(CALL)
        match = _ID.match(cursor.text, cursor.pos)
        assert match is not None  # the pattern also matches nothing
        if match.end() == len(cursor.text):
            cursor.short()
        cursor.pos = match.end()
        name = _COUNT.sub("", match.group().strip()).removeprefix("functions.")
        if name not in tools:
            cursor.fail()
        cursor.expect(ARGUMENTS)
        arguments = read_object(cursor)
        cursor.close(CALL_END)
        return make_call(cursor, name, arguments, tools.fitted)
