"""Kimi K3: `<|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>VALUE<|close|>
argument<|sep|><|close|>call<|sep|>`, in a channel `tools`."""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import Format, ParsedCall, make_call, several
from gateway.inspection.formats.tagged import read_value, value_end
from gateway.inspection.offered_tools import OfferedTools

TOOLS, TOOLS_END, SEP = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>", "<|sep|>"
CALL, CALL_END, ARGUMENT = "<|open|>call ", "<|close|>call<|sep|>", "<|open|>argument "
_HEAD_MOST = 1_000  # characters of the attributes of a call or of an argument
_ATTRIBUTE = re.compile(r'(\w{1,32})="([^"]*)"')


class KimiK3(Format):
    """A value is JSON unless its `type` is string."""

    name = "kimi_k3"
    markers = (TOOLS, CALL)
    closers = (CALL_END, TOOLS_END)
    _end = value_end("<|close|>argument<|sep|>", ARGUMENT, CALL_END)

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        if not cursor.skip(TOOLS):
            return [self._call(cursor, tools)]
        cursor.space()
        return several(cursor, lambda: self._call(cursor, tools), lambda: cursor.close(TOOLS_END))

    def _call(self, cursor: Cursor, tools: OfferedTools) -> ParsedCall:
        cursor.expect(CALL)
        name = _attributes(cursor).get("tool", "")
        if name not in tools:
            cursor.fail()
        arguments: dict[str, Any] = {}
        while not cursor.close(CALL_END, min_prefix=3):
            cursor.space()
            cursor.expect(ARGUMENT)
            given = _attributes(cursor)
            value = read_value(cursor, self._end)
            arguments[given.get("key", "")] = value if given.get("type", "string") == "string" else _decoded(value)
        return make_call(cursor, name, arguments)


def _attributes(cursor: Cursor) -> dict[str, str]:
    """The attributes up to the separator; the cursor moves behind it."""
    end = cursor.text.find(SEP, cursor.pos, cursor.pos + _HEAD_MOST)
    if end < 0:
        if len(cursor.text) - cursor.pos >= _HEAD_MOST:
            cursor.fail(cursor.pos + _HEAD_MOST)
        cursor.short()
    head, cursor.pos = cursor.text[cursor.pos : end], end + len(SEP)
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(head)}


def _decoded(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
