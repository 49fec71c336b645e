"""Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,count:3}<tool_call|>`; FunctionGemma with other tags."""

from __future__ import annotations

import re
from typing import Any

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, SPACED, Format, literal, make_call, read_name, read_object
from gateway.inspection.offered_tools import OfferedTools, ValueSchema, typed
from gateway.inspection.segments import Call

MAX_DEPTH = 100
# Bare text in an object ends at its brace or at a comma that a key follows; in a list at any comma.
_BARE_FIELD = re.compile(r"(?=\}|,\s*[\w.-]{1,128}\s*:)")
_BARE_ITEM = re.compile(r"(?=[}\],])")
_KEY = re.compile(r"[\w.$-]{0,256}")
_SCALARS = frozenset(("null", "boolean", "integer", "number"))
_RESPONSE = "<|tool_response>"  # how the result begins, which models write at times


class Gemma4(Format):
    """Arguments look like JSON with bare keys and special quotes; real JSON is accepted too."""

    def __init__(self, name: str, opening: str, closing: str, quote: str) -> None:
        self.name = name
        self.markers, self.closers = (opening,), (closing, "}")
        self._closing, self._quote = closing, quote
        self._quoted = re.compile(re.escape(quote))

    def follow(self, marker: str) -> str:
        return f"{SPACED}(?:{literal('call:')}|{literal(':')}|){NAMED}"

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        cursor.expect(*self.markers)
        cursor.space()
        cursor.skip("call:", ":")
        name = read_name(cursor, tools)
        cursor.space()
        arguments = self._json(cursor)
        if arguments is None:
            arguments = self._object(cursor, MAX_DEPTH, tools.shape(name))
        if cursor.close(self._closing):
            cursor.skip_spaced(_RESPONSE)
        return make_call(cursor, name, arguments)

    def _json(self, cursor: Cursor) -> dict[str, Any] | None:
        start = cursor.pos
        cursor.expect("{")
        cursor.space()
        is_json = cursor.at('"') is not None
        cursor.pos = start
        return read_object(cursor) if is_json else None

    def _object(self, cursor: Cursor, depth: int, shape: ValueSchema) -> dict[str, Any]:
        cursor.expect("{")
        fields: dict[str, Any] = {}
        while True:
            cursor.space()
            if cursor.skip("}"):
                return fields
            key = self._key(cursor)
            fields[key] = self._value(cursor, depth - 1, shape.field(key), _BARE_FIELD)
            cursor.space()
            if not cursor.skip(","):
                cursor.expect("}")
                return fields

    def _key(self, cursor: Cursor) -> str:
        key = self._text(cursor) if cursor.skip(self._quote) else cursor.run(_KEY)
        cursor.space()
        cursor.expect(":")
        return key

    def _value(self, cursor: Cursor, depth: int, shape: ValueSchema, bare: re.Pattern[str]) -> Any:
        """Models also quote values that are no strings: the schema decides; without a type a quoted one is a string."""
        cursor.space()
        if depth <= 0:
            cursor.fail()
        if cursor.skip(self._quote):
            return shape.fitted(self._text(cursor))
        if cursor.at("{"):
            return self._object(cursor, depth, shape)
        if cursor.skip("["):
            return self._list(cursor, depth, shape.item())
        if cursor.at('"'):
            return shape.fitted(cursor.json())
        start = cursor.pos
        text = cursor.text[start : cursor.until(bare).start()].strip()
        return typed(text, shape.types or _SCALARS)

    def _list(self, cursor: Cursor, depth: int, item: ValueSchema) -> list[Any]:
        items: list[Any] = []
        while True:
            cursor.space()
            if cursor.skip("]"):
                return items
            items.append(self._value(cursor, depth - 1, item, _BARE_ITEM))
            cursor.space()
            if not cursor.skip(","):
                cursor.expect("]")
                return items

    def _text(self, cursor: Cursor) -> str:
        start = cursor.pos
        return cursor.text[start : cursor.until(self._quoted).start()]
