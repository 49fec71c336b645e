"""Calls that write each argument between tags of its own."""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, SPACED, Format, literal, make_call, read_name, read_object
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.segments import Call

ValueEnd = tuple[re.Pattern[str], re.Pattern[str]]
"""Patterns for the end of an argument's free text: in a text that may still grow, and in a final one."""

_KEY = re.compile(r"[^<>\n\"]{0,256}")


def value_end(closing: str, another: str, last: str, *outer: str, unclosed: str = "") -> ValueEnd:
    """The value ends at `closing` if `another` argument, the `last` tag or an `outer` tag follows, so the value itself
    may contain `closing`. At the end of the text two characters of `last` are enough. `unclosed`: a pattern that also
    ends the value, and is not consumed."""
    also = f"|(?={unclosed})" if unclosed else ""
    followers = "|".join(map(re.escape, (another, last, *outer)))
    cut_off = re.escape(last[:2]) + literal(last[2:]) + r"\Z"
    ends = (followers, f"{followers}|{cut_off}")
    growing, final = (re.compile(rf"{re.escape(closing)}(?=\s*(?:{behind})){also}") for behind in ends)
    return growing, final


def read_value(cursor: Cursor, end: ValueEnd) -> str:
    """The text up to `end`; the cursor moves behind it."""
    start = cursor.pos
    return cursor.text[start : cursor.until(end[cursor.final]).start()]


def read_key(cursor: Cursor, closing: str) -> str:
    """An argument's name, up to `closing`."""
    key = cursor.run(_KEY)
    cursor.expect(closing)
    return key.strip()


class Glm45(Format):
    """GLM 4.5 on: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`. 4.5 puts newlines
    between the parts, 4.7 does not."""

    name = "glm45"
    markers, closers = ("<tool_call>",), ("</tool_call>",)
    _end = value_end("</arg_value>", "<arg_key>", "</tool_call>")

    def follow(self, marker: str) -> str:
        return SPACED + NAMED

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        cursor.expect(*self.markers)
        cursor.space()
        name = read_name(cursor, tools)
        arguments: dict[str, Any] = {}
        while not cursor.close(*self.closers, min_prefix=2):
            cursor.space()
            cursor.expect("<arg_key>")
            key = read_key(cursor, "</arg_key>")
            cursor.space()
            cursor.expect("<arg_value>")
            arguments[key] = tools.typed(name, key, read_value(cursor, self._end))
        return make_call(cursor, name, arguments)


PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
_FUSED_ENDS = ("</parameter_function>", "</parameterfunction>")  # both tags in one, as models write them at times
_BROKEN_END = re.compile(r"\n</parameter(?!>)[^<>\n]{0,8}>?\s*\Z")
_INNER = re.compile(r"\n<parameter=([^<>\n]{1,256})>")


class Qwen3Xml(Format):
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen 3.5 on,
    Step 3.5, MiMo; Seed-OSS with a wrapper of its own. The wrapper may be missing, and so may an argument's closing
    tag, and the function's inside the wrapper."""

    def __init__(self, name: str, tag: str) -> None:
        self.name = name
        self._open, self._close = f"<{tag}>", f"</{tag}>"
        self.markers = (self._open, FUNCTION)
        self.closers = (FUNCTION_END, self._close)
        unclosed = rf"{FUNCTION_END}\s*{re.escape(self._close)}|{'|'.join(_FUSED_ENDS)}"
        self._end = value_end(PARAMETER_END, PARAMETER, FUNCTION_END, unclosed=unclosed)
        self._end_wrapped = value_end(PARAMETER_END, PARAMETER, FUNCTION_END, self._close, unclosed=unclosed)

    def follow(self, marker: str) -> str:
        return NAMED if marker == FUNCTION else SPACED + literal(FUNCTION) + NAMED

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        wrapped = cursor.skip(self._open)
        cursor.space()
        cursor.expect(FUNCTION)
        name = read_name(cursor, tools)
        cursor.space()
        cursor.expect(">")
        arguments: dict[str, Any] = {}
        while True:
            cursor.space()
            if not arguments and cursor.at("{"):
                arguments = read_object(cursor)  # as Llama 3.1 writes them
            elif cursor.skip(PARAMETER):
                key = read_key(cursor, ">")
                value = read_value(cursor, self._end_wrapped if wrapped else self._end)
                for part_key, part in self._parts(key, value, name, tools):
                    part = _BROKEN_END.sub("\n", part)
                    inside = part.removeprefix("\n").removesuffix("\n")  # the format writes them beside the tags
                    arguments.setdefault(part_key, tools.typed(name, part_key, inside))
            elif cursor.skip(*_FUSED_ENDS) or cursor.close(FUNCTION_END, min_prefix=2):
                cursor.close(self._close)
                break
            elif wrapped and cursor.skip(self._close):
                break
            else:
                cursor.fail(cursor.pos + 1)
        return make_call(cursor, name, arguments)

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


_SEPARATOR = "<|sep|>"
_HEAD_MOST = 1_000  # characters of the attributes of a call or of an argument
_ATTRIBUTE = re.compile(r'(\w{1,32})="([^"]*)"')


class KimiK3(Format):
    """`<|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>VALUE<|close|>argument
    <|sep|><|close|>call<|sep|>`, in a channel `tools`. A value is JSON unless its `type` is string."""

    name = "kimi_k3"
    opens, closes = ("<|open|>tools<|sep|>",), ("<|close|>tools<|sep|>",)
    CALL, CALL_END, ARGUMENT = "<|open|>call ", "<|close|>call<|sep|>", "<|open|>argument "
    markers, closers = (*opens, CALL), (CALL_END, *closes)
    _end = value_end("<|close|>argument<|sep|>", ARGUMENT, CALL_END)

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        cursor.expect(self.CALL)
        name = _attributes(cursor).get("tool", "")
        if name not in tools:
            cursor.fail()
        arguments: dict[str, Any] = {}
        while not cursor.close(self.CALL_END, min_prefix=3):
            cursor.space()
            cursor.expect(self.ARGUMENT)
            given = _attributes(cursor)
            value = read_value(cursor, self._end)
            arguments[given.get("key", "")] = value if given.get("type", "string") == "string" else _decoded(value)
        return make_call(cursor, name, arguments)


def _attributes(cursor: Cursor) -> dict[str, str]:
    """The attributes up to the separator; the cursor moves behind it."""
    end = cursor.text.find(_SEPARATOR, cursor.pos, cursor.pos + _HEAD_MOST)
    if end < 0:
        if len(cursor.text) - cursor.pos >= _HEAD_MOST:
            cursor.fail(cursor.pos + _HEAD_MOST)
        cursor.short()
    head, cursor.pos = cursor.text[cursor.pos : end], end + len(_SEPARATOR)
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(head)}


def _decoded(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
