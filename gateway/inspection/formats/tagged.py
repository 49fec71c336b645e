"""Parsing steps of the formats that write each argument between its own tags."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.inspection.cursor import Cursor

_KEY = re.compile(r"[^<>\n\"]{0,256}")


@dataclass(frozen=True, slots=True)
class ValueEnd:
    """Patterns for the end of an argument's free text: in a text that may still grow, and in a final one."""

    growing: re.Pattern[str]
    final: re.Pattern[str]


def value_end(closing: str, another: str, last: str, *outer: str, unclosed: str = "") -> ValueEnd:
    """The value ends at `closing` if `another` argument, the `last` tag or an `outer` tag follows, so the value itself
    may contain `closing`. At the end of the text a cut-off `last` is enough. `unclosed`: a pattern that also ends the
    value, and is not consumed."""
    also = f"|(?={unclosed})" if unclosed else ""
    followers = "|".join(map(re.escape, (another, last, *outer)))
    beginning = _beginning_at_end(last, 2)
    return ValueEnd(
        re.compile(rf"{re.escape(closing)}(?=\s*(?:{followers})){also}"),
        re.compile(rf"{re.escape(closing)}(?=\s*(?:{followers}|{beginning})){also}"),
    )


def _beginning_at_end(tag: str, least: int) -> str:
    """A pattern for at least the first `least` characters of `tag` at the end of the text."""
    pattern = r"\Z"
    for char in reversed(tag[least:]):
        pattern = rf"(?:\Z|{re.escape(char)}{pattern})"
    return re.escape(tag[:least]) + pattern


def read_value(cursor: Cursor, end: ValueEnd) -> str:
    """The text up to `end`; the cursor moves behind it."""
    start = cursor.pos
    return cursor.text[start : cursor.until(end.final if cursor.final else end.growing).start()]


def unwrapped(value: str) -> str:
    """The value without the newlines that the format writes behind the opening and before the closing tag."""
    return value.removeprefix("\n").removesuffix("\n")


def read_key(cursor: Cursor, closing: str) -> str:
    """An argument's name, up to `closing`."""
    match = _KEY.match(cursor.text, cursor.pos)
    assert match is not None  # the pattern also matches nothing
    if match.end() == len(cursor.text):
        cursor.short()
    cursor.pos = match.end()
    cursor.expect(closing)
    return match.group().strip()
