"""Calls as Python writes them. Only keyword arguments with literal values; no code is evaluated."""

from __future__ import annotations

import re
from typing import Any

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, SPACED, Format, literal, make_call, read_calls, read_name
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.python_literals import MAX_DEPTH, PLAIN, has_any, has_more, plain_value, read_plain, read_value
from gateway.inspection.segments import Call

START, END = "<|python_start|>", "<|python_end|>"
_KEY = re.compile(r"(?:[^\W\d]\w{0,127})?")
_ARGUMENT = re.compile(r"\s*(?P<key>[^\W\d]\w{0,127})\s*=" + PLAIN)


class Olmo3(Format):
    """One a line, in `<function_calls>`. JSON's true, false and null are accepted too."""

    name = "olmo3"
    opens, closes = ("<function_calls>",), ("</function_calls>",)
    markers: tuple[str, ...] = opens
    closers: tuple[str, ...] = (*closes, ")")

    def follow(self, marker: str) -> str:
        return SPACED + NAMED

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        name = read_name(cursor, tools)
        cursor.expect("(")
        arguments: dict[str, Any] = {}
        more = True
        while more:
            if (plain := read_plain(cursor, _ARGUMENT, ")")) is not None:
                arguments[plain["key"]] = plain_value(plain)
                more = plain["end"] == ","
            elif more := has_any(cursor, ")"):
                key = self._key(cursor)
                arguments[key] = read_value(cursor, MAX_DEPTH)
                more = has_more(cursor, ")")
        return make_call(cursor, name, arguments)

    def _key(self, cursor: Cursor) -> str:
        key = cursor.run(_KEY)
        if not key:
            cursor.fail(cursor.pos + 1)
        cursor.space()
        cursor.expect("=")
        return key


class Lfm2(Olmo3):
    """In a list between tags: `<|tool_call_start|>[get_weather(city='Oslo')]<|tool_call_end|>`; at times as JSON."""

    name = "lfm2"
    markers = ("<|tool_call_start|>",)
    closers = ("<|tool_call_end|>",)

    def follow(self, marker: str) -> str:
        return SPACED + literal("[")

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[Call]:
        cursor.expect(*self.markers)
        cursor.space()
        if cursor.at('[{"', "[{ ", '[ {"'):
            calls = read_calls(cursor, tools)
        else:
            cursor.expect("[")
            cursor.space()
            calls = [self.read_call(cursor, tools)]
            while has_more(cursor, "]"):
                calls.append(self.read_call(cursor, tools))
        cursor.close(*self.closers)
        return calls


class Pythonic(Olmo3):
    """In a list, as the whole answer: `[get_weather(city='Oslo'), ping()]` (Llama 3.2 and 4, and others)."""

    name = "pythonic"
    markers = ("[", START)
    closers = (")]", ") ]", ")\n]", END)
    only_at_start = True

    def follow(self, marker: str) -> str:
        return SPACED + (NAMED if marker == "[" else literal("["))

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[Call]:
        wrapped = cursor.skip(START)
        cursor.space()
        cursor.expect("[")
        cursor.space()
        calls = [self.read_call(cursor, tools)]
        while has_more(cursor, "]"):
            calls.append(self.read_call(cursor, tools))
        if wrapped:
            cursor.close(END)
        return calls
