"""Llama 3.1 on: a bare `{"name": ..., "parameters": {...}}`, several joined by `; `; at times behind a token."""

from __future__ import annotations

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import JSON_CALLS, SPACED, Format, ParsedCall, literal, one_of, read_calls
from gateway.inspection.offered_tools import OfferedTools

TOKEN = "<|python_tag|>"
_KEYS = ('"name"', '"type"', '"function"', '"parameters"', '"arguments"')
_LAYOUTS = ("{", "{ ", "{\n", "{\n ", "{\n  ", "{\n    ", "{\n\t")
_LISTS = (
    *("[{", "[{ ", "[ {", "[ { ", "[\n{", "[\n{ ", "[\n {", "[\n  {", "[\n    {", "[\n\t{"),
    *("[{\n  ", "[{\n    ", "[\n{\n  ", "[\n{\n    "),
    *("[\n {\n  ", "[\n  {\n    ", "[\n    {\n        ", "[\n\t{\n\t\t"),
)


BARE = (
    *(layout + key for layout in _LAYOUTS for key in _KEYS),
    *(layout + key for layout in _LISTS for key in _KEYS[:3]),
)
"""The markers of a call without a tag."""


class Llama3Json(Format):
    """Without a tag, the marker of a call is the beginning of an object with a call's key, in the layouts that models
    use, or the beginning of a list of such objects."""

    name = "llama3_json"
    markers = (TOKEN, *BARE)
    closers = ("}", "}]", "\n]", " ]")
    separators = ";"

    def follow(self, marker: str) -> str:
        return JSON_CALLS if marker == TOKEN else SPACED + literal(":") + SPACED + one_of('"{n')

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[ParsedCall]:
        if cursor.skip(TOKEN):
            cursor.space()
        return read_calls(cursor, tools)
