"""DeepSeek's DSML, of V3.2 on: `<｜DSML｜invoke name="..."><｜DSML｜parameter name="..." string="true">...`."""

from __future__ import annotations

from typing import Any

from gateway.compat.cursor import Cursor
from gateway.compat.formats.base import NAMED, SPACED, Format, ParsedCall, literal, make_call, read_name, several
from gateway.compat.formats.tagged import read_key, read_value, value_end
from gateway.compat.offered import ANY, Offered, typed

ANYTHING = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))


class Dsml(Format):
    """`wrapper`: the tag around all calls, which may be missing. `prefix`: what every tag begins with."""

    def __init__(self, name: str, wrapper: str, prefix: str = "｜DSML｜") -> None:
        self.name = name
        self._open, self._close = f"<{prefix}{wrapper}>", f"</{prefix}{wrapper}>"
        self._invoke, self._invoke_end = f'<{prefix}invoke name="', f"</{prefix}invoke>"
        self._parameter, self._parameter_end = f'<{prefix}parameter name="', f"</{prefix}parameter>"
        self.markers = (self._open, self._invoke)
        self.closers = (self._close, self._invoke_end)
        self._end = value_end(self._parameter_end, self._parameter, self._invoke_end)

    def follow(self, marker: str) -> str:
        return NAMED if marker == self._invoke else SPACED + literal(self._invoke) + NAMED

    def read(self, cursor: Cursor, tools: Offered) -> list[ParsedCall]:
        if not cursor.skip(self._open):
            return [self._call(cursor, tools)]
        cursor.space()
        return several(cursor, lambda: self._call(cursor, tools), lambda: cursor.close(self._close))

    def _call(self, cursor: Cursor, tools: Offered) -> ParsedCall:
        cursor.expect(self._invoke)
        name = read_name(cursor, tools)
        cursor.expect('">')
        arguments: dict[str, Any] = {}
        while True:
            cursor.space()
            if cursor.skip(self._parameter):
                key, types = self._argument(cursor, name, tools)
                arguments[key] = typed(read_value(cursor, self._end), types)
            elif cursor.close(self._invoke_end, torn=2):
                return make_call(cursor, name, arguments)
            else:
                cursor.fail(cursor.pos + 1)

    def _argument(self, cursor: Cursor, name: str, tools: Offered) -> tuple[str, frozenset[str]]:
        """Its name and types: `string="true"` and "false" are the model's word, the schema decides without it."""
        key = read_key(cursor, '"')
        declared = tools.types(name, key)
        if cursor.skip(' string="true"'):
            declared = frozenset(("string",))
        elif cursor.skip(' string="false"'):
            declared = ANYTHING if declared == ANY or declared == {"string"} else declared
        cursor.expect(">")
        return key, declared
