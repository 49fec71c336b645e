"""Calls that are one JSON object with the name and the arguments, or a list of such objects."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import JSON_CALLS, SPACED, Format, literal, one_of, read_calls
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.segments import Call

PYTHON_TAG = "<|python_tag|>"
CLOSER = "</tool_call>"
_KEYS = ('"name"', '"type"', '"function"', '"parameters"', '"arguments"')
_LAYOUTS = ("{", "{ ", "{\n", "{\n ", "{\n  ", "{\n    ", "{\n\t")
_LISTS = (
    *("[{", "[{ ", "[ {", "[ { ", "[\n{", "[\n{ ", "[\n {", "[\n  {", "[\n    {", "[\n\t{"),
    *("[{\n  ", "[{\n    ", "[\n{\n  ", "[\n{\n    "),
    *("[\n {\n  ", "[\n  {\n    ", "[\n    {\n        ", "[\n\t{\n\t\t"),
)
# The markers of a call without a tag: the beginning of an object with a call's key, or of a list of such objects, in
# the layouts that models use.
BARE = (*(layout + key for layout in _LAYOUTS for key in _KEYS), *(way + key for way in _LISTS for key in _KEYS[:3]))
_BARE_FOLLOW = SPACED + literal(":") + SPACED + one_of('"{n')
_ENDS = ("}", "}]", "\n]", " ]")


class Hermes(Format):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3; with other tags LongCat,
    Granite, InternLM and Jamba. The closing tag may be missing; "" where the format has none. `fit`: arguments are
    converted to the declared types, as vLLM's parser does."""

    def __init__(self, name: str, opening: tuple[str, ...], closing: str, *, fit: bool = False) -> None:
        self.name = name
        self._fit = fit
        self._close = closing
        self.markers = opening
        self.closers = (closing,) if closing else _ENDS

    def follow(self, marker: str) -> str:
        return JSON_CALLS

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[Call]:
        cursor.expect(*self.markers)
        cursor.space()
        calls = read_calls(cursor, tools, fit=self._fit)
        if self._close:
            cursor.close(self._close)
        return calls


class Llama3Json(Format):
    """Llama 3.1 on: a bare `{"name": ..., "parameters": {...}}`, several joined by `; `; at times behind a token."""

    name = "llama3_json"
    markers = (PYTHON_TAG, *BARE)
    closers = _ENDS
    separators = ";"

    def follow(self, marker: str) -> str:
        return JSON_CALLS if marker == PYTHON_TAG else _BARE_FOLLOW

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[Call]:
        if cursor.skip(PYTHON_TAG):
            cursor.space()
        return read_calls(cursor, tools)


class Unopened(Format):
    """A call whose opening tag a parser has taken out of the text: vLLM's Rust front end does so with each call that it
    cannot read, so `{"name": ..., "parameters": {...}}</tool_call>` is left. It counts only with the closing tag right
    behind it, so that JSON in prose stays prose."""

    name = "unopened"
    markers = BARE
    closers = (CLOSER,)

    def follow(self, marker: str) -> str:
        return _BARE_FOLLOW

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[Call]:
        calls = read_calls(cursor, tools)
        cursor.space()
        cursor.expect(CLOSER)
        return calls


UNOPENED = Unopened()


class Phi4MiniJson(Format):
    """Phi-4-mini: `functools[{"name": ..., "arguments": {...}}]`."""

    name = "phi4_mini_json"
    markers = ("functools[",)
    closers = ("]",)

    def follow(self, marker: str) -> str:
        return SPACED + one_of("{")

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[Call]:
        cursor.expect("functools[")
        cursor.pos -= 1
        return read_calls(cursor, tools)
