"""GLM 4.5 on: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`."""

from __future__ import annotations

from typing import Any

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, SPACED, Format, ParsedCall, make_call, read_name
from gateway.inspection.formats.tagged import read_key, read_value, value_end
from gateway.inspection.offered_tools import OfferedTools

OPEN, CLOSE, KEY, KEY_END, VALUE = "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>"


class Glm45(Format):
    """4.5 puts newlines between the parts, 4.7 does not."""

    name = "glm45"
    markers = (OPEN,)
    closers = (CLOSE,)
    _end = value_end("</arg_value>", KEY, CLOSE)

    def follow(self, marker: str) -> str:
        return SPACED + NAMED

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        cursor.expect(OPEN)
        cursor.space()
        name = read_name(cursor, tools)
        arguments: dict[str, Any] = {}
        while not cursor.close(CLOSE, min_prefix=2):
            cursor.space()
            cursor.expect(KEY)
            key = read_key(cursor, KEY_END)
            cursor.space()
            cursor.expect(VALUE)
            arguments[key] = tools.typed(name, key, read_value(cursor, self._end))
        return [make_call(cursor, name, arguments)]
