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


class JsonCalls(Format):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3; with other tags LongCat,
    Granite, InternLM and Jamba. `closing` may be missing, unless it is `closed`; "" where the format has none. `bare`:
    the object may stand without `opening`, as `{"name": ..., "parameters": {...}}` of Llama 3.1 on, several joined by
    `; `. `fit`: arguments are converted to the declared types, as vLLM's parser does."""

    def __init__(
        self,
        name: str,
        opening: tuple[str, ...],
        closing: str = "",
        *,
        bare: bool = False,
        closed: bool = False,
        fit: bool = False,
        separators: str = "",
    ) -> None:
        self.name = name
        self.markers = (*opening, *BARE) if bare else opening
        self.closers = (closing,) if closing else _ENDS
        self.separators = separators
        self._opening, self._close = opening, closing
        self._bare, self._closed, self._fit = bare, closed, fit

    def follow(self, marker: str) -> str:
        return JSON_CALLS if marker in self._opening else _BARE_FOLLOW

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[Call]:
        if not self._bare:
            cursor.expect(*self._opening)
            cursor.space()
        elif self._opening and cursor.skip(*self._opening):
            cursor.space()
        calls = read_calls(cursor, tools, fit=self._fit)
        if self._closed:
            cursor.space()
            cursor.expect(self._close)
        elif self._close:
            cursor.close(self._close)
        return calls


# A call whose opening tag a parser has taken out of the text: vLLM's Rust front end does so with each call that it
# cannot read, so `{"name": ..., "parameters": {...}}</tool_call>` is left. It counts only with the closing tag right
# behind it, so that JSON in prose stays prose.
UNOPENED = JsonCalls("unopened", (), CLOSER, bare=True, closed=True)


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
