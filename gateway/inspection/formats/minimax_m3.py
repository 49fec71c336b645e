"""MiniMax M3: like M2, but every tag has the prefix `]<]minimax[>[`, and each argument has a tag with its own name.
Objects and lists contain nested tags."""

from __future__ import annotations

import re
from typing import Any

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, SPACED, Format, literal, make_call, read_name
from gateway.inspection.formats.tagged import read_key
from gateway.inspection.offered_tools import OfferedTools, ValueSchema, typed
from gateway.inspection.segments import Call

PREFIX = "]<]minimax[>["
OPEN = f"{PREFIX}<tool_call>"
INVOKE, INVOKE_END = f'{PREFIX}<invoke name="', f"{PREFIX}</invoke>"
ARGUMENT, ARGUMENT_END = f"{PREFIX}<", f"{PREFIX}</"
MAX_DEPTH = 100
_PREFIX = re.compile(re.escape(PREFIX))

Element = str | list[tuple[str, "Element"]]  # its text, or its child elements with their names


class MinimaxM3(Format):
    name = "minimax_m3"
    opens, closes = (OPEN,), (f"{PREFIX}</tool_call>",)
    markers, closers = (OPEN, INVOKE), (*closes, INVOKE_END)

    def follow(self, marker: str) -> str:
        return NAMED if marker == INVOKE else SPACED + literal(INVOKE) + NAMED

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        cursor.expect(INVOKE)
        name = read_name(cursor, tools)
        cursor.expect('">')
        fields: list[tuple[str, Element]] = []
        while not cursor.close(INVOKE_END, min_prefix=len(ARGUMENT_END)):
            cursor.space()
            cursor.expect(ARGUMENT)
            fields.append(self._element(cursor, MAX_DEPTH))
        return make_call(cursor, name, _object(fields, tools.shape(name)))

    def _element(self, cursor: Cursor, depth: int) -> tuple[str, Element]:
        """Read an element behind its opening `<`. Returns (its name, its content)."""
        if depth == 0:
            cursor.fail()
        key = read_key(cursor, ">")
        end = f"{ARGUMENT_END}{key}>"
        text = ""
        fields: list[tuple[str, Element]] = []
        while True:
            start = cursor.pos
            cursor.until(_PREFIX)
            cursor.pos -= len(PREFIX)
            text += cursor.text[start : cursor.pos]
            if cursor.skip(end):
                if fields and text.strip():
                    fields.append((_free(fields), text))
                return key, (fields or text)
            if cursor.at(ARGUMENT_END, INVOKE, OPEN):
                cursor.fail(cursor.pos + 1)
            cursor.expect(ARGUMENT)
            fields.append(self._element(cursor, depth - 1))


def _free(fields: list[tuple[str, Element]]) -> str:
    """An unused name for text between elements."""
    name = "$text"
    while any(key == name for key, _ in fields):
        name = "$" + name
    return name


def _value(element: Element, shape: ValueSchema) -> Any:
    """The value of an element. With child elements it is an object, or a list if the schema declares one; an empty
    element is an empty list or object if the schema allows no string."""
    types = shape.types
    if isinstance(element, str):
        if not element.strip() and "string" not in types and not types.isdisjoint(("array", "object")):
            return [] if "array" in types else {}
        return shape.fitted(typed(element, types))
    if "array" in types:
        item = shape.item()
        return [_value(value, item) for _, value in element]
    return _object(element, shape)


def _object(elements: list[tuple[str, Element]], shape: ValueSchema) -> dict[str, Any]:
    """The object that the elements describe. Values with the same name become a list."""
    found: dict[str, list[Any]] = {}
    for key, element in elements:
        found.setdefault(key, []).append(_value(element, shape.field(key)))
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}
