"""Python calls in a list, as the whole answer: `[get_weather(city='Oslo'), ping()]` (Llama 3.2 and 4, and others)."""

from __future__ import annotations

import re
from typing import Any

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, SPACED, Format, ParsedCall, literal, make_call, read_name
from gateway.inspection.offered_tools import OfferedTools

MAX_DEPTH = 100
START, END = "<|python_start|>", "<|python_end|>"
_KEY = re.compile(r"(?:[^\W\d]\w{0,127})?")
_TEXT = re.compile(r"""'(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+\"""", re.S)
_ESCAPE = re.compile(
    r"\\(?:(?P<char>[\n\\'\"abfnrtv])|(?P<octal>[0-7]{1,3})|x(?P<x>[\da-fA-F]{2})|u(?P<u>[\da-fA-F]{4})|U(?P<U>000[\da-fA-F]{5}|0010[\da-fA-F]{4}))"
)
_CHARS = {"\n": "", "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NUMERIC = re.compile(r"[\w.+-]{0,80}")
_NUMBER = re.compile(r"[+-]?(?:(?P<whole>\d[\d_]*)|(?:\d[\d_]*\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d{1,4})?)", re.A)
_QUOTES = ("'", '"')
# Matches nearly all arguments and fields, with the character behind them, in one step; others are read in parts.
_PLAIN = (
    r"""\s*(?:(?P<whole>[+-]?[0-9]{1,18})|(?P<real>[+-]?[0-9]{1,18}\.[0-9]{1,18})|(?P<text>'[^'\\]*+'|"[^"\\]*+"))"""
    r"""\s*(?P<end>[,)}])"""
)
_ARGUMENT = re.compile(r"\s*(?P<key>[^\W\d]\w{0,127})\s*=" + _PLAIN)
_FIELD = re.compile(r"""\s*(?P<quote>['"])(?P<key>[^'"\\]*+)(?P=quote)\s*:""" + _PLAIN)
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_NUMBER_STARTS = frozenset("0123456789.+-")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


class Pythonic(Format):
    """Only keyword arguments with literal values; no code is evaluated."""

    name = "pythonic"
    markers: tuple[str, ...] = ("[", START)
    closers: tuple[str, ...] = (")]", ") ]", ")\n]", END)
    only_at_start = True

    def follow(self, marker: str) -> str:
        return SPACED + (NAMED if marker == "[" else literal("["))

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        wrapped = cursor.skip(START)
        cursor.space()
        cursor.expect("[")
        cursor.space()
        calls = [self._call(cursor, tools)]
        while self._more(cursor, "]"):
            calls.append(self._call(cursor, tools))
        if wrapped:
            cursor.close(END)
        return calls

    def _more(self, cursor: Cursor, closing: str) -> bool:
        """Does another item follow the one before the cursor? Moves past the comma or the `closing` bracket."""
        cursor.space()
        char = cursor.peek()
        if char == ",":
            cursor.pos += 1
            return self._any(cursor, closing)
        if char == closing:
            cursor.pos += 1
            return False
        if not cursor.skip(closing):
            cursor.expect(",")
        return False

    def _any(self, cursor: Cursor, closing: str) -> bool:
        char = cursor.peek()
        if char and char != closing and not char.isspace():
            return True
        cursor.space()
        return not cursor.skip(closing)

    def _call(self, cursor: Cursor, tools: OfferedTools) -> ParsedCall:
        name = read_name(cursor, tools)
        cursor.expect("(")
        arguments: dict[str, Any] = {}
        more = True
        while more:
            if (plain := self._plain(cursor, _ARGUMENT, ")")) is not None:
                arguments[plain["key"]] = _plain_value(plain)
                more = plain["end"] == ","
            elif more := self._any(cursor, ")"):
                key = self._key(cursor)
                arguments[key] = self._value(cursor, MAX_DEPTH)
                more = self._more(cursor, ")")
        return make_call(cursor, name, arguments)

    def _plain(self, cursor: Cursor, pattern: re.Pattern[str], closing: str) -> re.Match[str] | None:
        """Move past an argument or a field with a plain value, and past the comma or bracket behind it. None = there is
        none."""
        match = pattern.match(cursor.text, cursor.pos)
        if match is None or match["end"] not in (",", closing):
            return None
        end = cursor.pos = match.end()
        if end > cursor.looked:
            cursor.looked = end
        return match

    def _key(self, cursor: Cursor) -> str:
        match = _KEY.match(cursor.text, cursor.pos)
        assert match is not None  # the pattern also matches nothing
        if match.end() == len(cursor.text):
            cursor.short()
        if not match.group():
            cursor.fail(cursor.pos + 1)
        cursor.pos = match.end()
        cursor.space()
        cursor.expect("=")
        return match.group()

    def _value(self, cursor: Cursor, depth: int) -> Any:
        cursor.space()
        if depth == 0:
            cursor.fail()
        char = cursor.peek()
        if char in _NUMBER_STARTS:
            return self._number(cursor)
        if char in _QUOTES or cursor.at(*_QUOTES):
            return self._text(cursor)
        if char in _BRACKETS:
            cursor.pos += 1
            return self._fields(cursor, depth - 1) if char == "{" else self._items(cursor, depth - 1, _BRACKETS[char])
        word = cursor.at(*_WORDS)
        if word is None:
            return self._number(cursor)
        cursor.pos += len(word)
        return _WORDS[word]

    def _text(self, cursor: Cursor) -> str:
        match = _TEXT.match(cursor.text, cursor.pos)
        if match is None:
            cursor.short()
        cursor.pos = match.end()
        return _ESCAPE.sub(_unescaped, match.group()[1:-1])

    def _number(self, cursor: Cursor) -> int | float:
        match = _NUMERIC.match(cursor.text, cursor.pos)
        assert match is not None  # the pattern also matches nothing
        if match.end() == len(cursor.text):
            cursor.short()
        number = _NUMBER.fullmatch(match.group())
        if number is None:
            cursor.fail(match.end())
        cursor.pos = match.end()
        return int(number.group()) if number.group("whole") else float(number.group())

    def _items(self, cursor: Cursor, depth: int, closing: str) -> list[Any]:
        items: list[Any] = []
        more = self._any(cursor, closing)
        while more:
            items.append(self._value(cursor, depth))
            more = self._more(cursor, closing)
        return items

    def _fields(self, cursor: Cursor, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        more = True
        while more:
            if depth > 0 and (plain := self._plain(cursor, _FIELD, "}")) is not None:
                fields[plain["key"]] = _plain_value(plain)
                more = plain["end"] == ","
            elif more := self._any(cursor, "}"):
                if cursor.peek() not in _QUOTES and cursor.at(*_QUOTES) is None:
                    cursor.fail(cursor.pos + 1)
                key = self._text(cursor)
                cursor.space()
                cursor.expect(":")
                fields[key] = self._value(cursor, depth)
                more = self._more(cursor, "}")
        return fields


def _plain_value(match: re.Match[str]) -> str | int | float:
    if match["text"] is not None:
        return match["text"][1:-1]
    return int(match["whole"]) if match["whole"] is not None else float(match["real"])


def _unescaped(match: re.Match[str]) -> str:
    if match["char"] is not None:
        return _CHARS.get(match["char"], match["char"])
    if match["octal"]:
        return chr(int(match["octal"], 8))
    return chr(int(match["x"] or match["u"] or match["U"], 16))
