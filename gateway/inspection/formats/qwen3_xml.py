"""`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen 3.5 on,
Step 3.5, MiMo; Seed-OSS with a wrapper of its own."""

from __future__ import annotations

import re
from typing import Any

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, SPACED, Format, ParsedCall, literal, make_call, read_name
from gateway.inspection.formats.tagged import read_key, read_value, unwrapped, value_end
from gateway.inspection.offered_tools import OfferedTools

PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
_INNER = re.compile(r"\n<parameter=([^<>\n]{1,256})>")


class Qwen3Xml(Format):
    """The wrapper may be missing, and so may an argument's closing tag, and the function's inside the wrapper."""

    def __init__(self, name: str = "qwen3_xml", tag: str = "tool_call") -> None:
        self.name = name
        self._open, self._close = f"<{tag}>", f"</{tag}>"
        self.markers = (self._open, FUNCTION)
        self.closers = (FUNCTION_END, self._close)
        unclosed = rf"{FUNCTION_END}\s*{re.escape(self._close)}"
        self._end = value_end(PARAMETER_END, PARAMETER, FUNCTION_END, unclosed=unclosed)
        self._end_wrapped = value_end(PARAMETER_END, PARAMETER, FUNCTION_END, self._close, unclosed=unclosed)

    def follow(self, marker: str) -> str:
        return NAMED if marker == FUNCTION else SPACED + literal(FUNCTION) + NAMED

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        wrapped = cursor.skip(self._open)
        cursor.space()
        cursor.expect(FUNCTION)
        name = read_name(cursor, tools)
        cursor.space()
        cursor.expect(">")
        arguments: dict[str, Any] = {}
        while True:
            cursor.space()
            if cursor.skip(PARAMETER):
                key = read_key(cursor, ">")
                value = read_value(cursor, self._end_wrapped if wrapped else self._end)
                for part_key, part in self._parts(key, value, name, tools):
                    arguments.setdefault(part_key, tools.typed(name, part_key, unwrapped(part)))
            elif cursor.close(FUNCTION_END, min_prefix=2):
                cursor.close(self._close)
                break
            elif wrapped and cursor.skip(self._close):
                break
            else:
                cursor.fail(cursor.pos + 1)
        return [make_call(cursor, name, arguments)]

    def _parts(self, key: str, value: str, name: str, tools: OfferedTools) -> list[tuple[str, str]]:
        """An argument, split if its closing tag was missing and its value contains the arguments behind it. Only a line
        that opens another argument *of this tool* splits it; any other line is part of the value."""
        parts, start = [], 0
        closed = value.find(PARAMETER_END)
        for match in _INNER.finditer(value, 0, closed if closed >= 0 else len(value)):
            if tools.declares(name, match.group(1)):
                parts.append((key, value[start : match.start()] + "\n"))
                key, start = match.group(1), match.end()
        return [*parts, (key, value[start:])]
