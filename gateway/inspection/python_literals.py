"""Python's literals as models write them: lists, dicts, strings, numbers and True, False, None. No code is evaluated,
and two strings in a row are no literal: the comma between them may have been forgotten."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

from gateway.inspection.cursor import Cursor

MAX_DEPTH = 100
_TEXT = re.compile(r"""'(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+\"""", re.S)
_ESCAPE = re.compile(
    r"\\(?:(?P<char>[\n\\'\"abfnrtv])|(?P<octal>[0-7]{1,3})|x(?P<x>[\da-fA-F]{2})|u(?P<u>[\da-fA-F]{4})|U(?P<U>000[\da-fA-F]{5}|0010[\da-fA-F]{4}))"
)
_CHARS = {"\n": "", "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NUMERIC = re.compile(r"[\w.+-]{0,80}")
_NUMBER = re.compile(r"[+-]?(?:(?P<whole>\d[\d_]*)|(?:\d[\d_]*\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d{1,4})?)", re.A)
_QUOTES = ("'", '"')
# Matches nearly all arguments and fields, with the character behind them, in one step; others are read in parts.
PLAIN = (
    r"""\s*(?:(?P<whole>[+-]?[0-9]{1,18})|(?P<real>[+-]?[0-9]{1,18}\.[0-9]{1,18})|(?P<text>'[^'\\]*+'|"[^"\\]*+"))"""
    r"""\s*(?P<end>[,)}])"""
)
_FIELD = re.compile(r"""\s*(?P<quote>['"])(?P<key>[^'"\\]*+)(?P=quote)\s*:""" + PLAIN)
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_NUMBER_STARTS = frozenset("0123456789.+-")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


def python_literal(text: str) -> Any:
    """The value of a whole text that is one literal. Raises NotACall where it is none."""
    cursor = Cursor(text, 0, final=True)
    value = read_value(cursor, MAX_DEPTH)
    cursor.space()
    if cursor.pos < len(text):
        cursor.fail()
    return value


def read_value(cursor: Cursor, depth: int) -> Any:
    """Read one value, nested at most `depth` deep. Raises NotACall, NeedMore."""
    cursor.space()
    if depth == 0:
        cursor.fail()
    char = cursor.peek()
    if char in _NUMBER_STARTS:
        return _read_number(cursor)
    if char in _QUOTES or cursor.at(*_QUOTES):
        return _read_text(cursor)
    if char in _BRACKETS:
        cursor.pos += 1
        return _read_fields(cursor, depth - 1) if char == "{" else _read_items(cursor, depth - 1, _BRACKETS[char])
    word = cursor.at(*_WORDS)
    if word is None:
        return _read_number(cursor)
    cursor.pos += len(word)
    return _WORDS[word]


def _read_text(cursor: Cursor) -> str:
    match = _TEXT.match(cursor.text, cursor.pos)
    if match is None:
        cursor.short()
    cursor.pos = match.end()
    return _ESCAPE.sub(_unescaped, match.group()[1:-1])


def _read_number(cursor: Cursor) -> int | float:
    number = _NUMBER.fullmatch(cursor.run(_NUMERIC))
    if number is None:
        cursor.fail()
    value = int(number.group()) if number.group("whole") else float(number.group())
    if not isfinite(value):
        cursor.fail()
    return value


def _read_items(cursor: Cursor, depth: int, closing: str) -> list[Any]:
    items: list[Any] = []
    more = has_any(cursor, closing)
    while more:
        items.append(read_value(cursor, depth))
        more = has_more(cursor, closing)
    return items


def _read_fields(cursor: Cursor, depth: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    more = True
    while more:
        if depth > 0 and (plain := read_plain(cursor, _FIELD, "}")) is not None:
            fields[plain["key"]] = plain_value(plain)
            more = plain["end"] == ","
        elif more := has_any(cursor, "}"):
            if cursor.peek() not in _QUOTES and cursor.at(*_QUOTES) is None:
                cursor.fail(cursor.pos + 1)
            key = _read_text(cursor)
            cursor.space()
            cursor.expect(":")
            fields[key] = read_value(cursor, depth)
            more = has_more(cursor, "}")
    return fields


def has_more(cursor: Cursor, closing: str) -> bool:
    """Does another item follow the one before the cursor? Moves past the comma or the `closing` bracket."""
    cursor.space()
    char = cursor.peek()
    if char == ",":
        cursor.pos += 1
        return has_any(cursor, closing)
    if char == closing:
        cursor.pos += 1
        return False
    if not cursor.skip(closing):
        cursor.expect(",")
    return False


def has_any(cursor: Cursor, closing: str) -> bool:
    char = cursor.peek()
    if char and char != closing and not char.isspace():
        return True
    cursor.space()
    return not cursor.skip(closing)


def read_plain(cursor: Cursor, pattern: re.Pattern[str], closing: str) -> re.Match[str] | None:
    """Move past an argument or a field with a plain value and what ends it. None = there is none."""
    match = pattern.match(cursor.text, cursor.pos)
    if match is None or match["end"] not in (",", closing):
        return None
    end = cursor.pos = match.end()
    if end > cursor.looked:
        cursor.looked = end
    return match


def plain_value(match: re.Match[str]) -> str | int | float:
    if match["text"] is not None:
        return match["text"][1:-1]
    return int(match["whole"]) if match["whole"] is not None else float(match["real"])


def _unescaped(match: re.Match[str]) -> str:
    if match["char"] is not None:
        return _CHARS.get(match["char"], match["char"])
    if match["octal"]:
        return chr(int(match["octal"], 8))
    return chr(int(match["x"] or match["u"] or match["U"], 16))
