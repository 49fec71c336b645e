"""DeepSeek's DSML, of V3.2 on: `<｜DSML｜invoke name="..."><｜DSML｜parameter name="..." string="true">...`; with other
prefixes MiniMax M2 and Step 3."""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.inspection.cursor import Cursor
from gateway.inspection.formats.base import NAMED, SPACED, Format, literal, make_call, read_name
from gateway.inspection.formats.tagged import read_value, value_end
from gateway.inspection.offered_tools import ANY, OfferedTools, typed
from gateway.inspection.segments import Call

ANYTHING = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_KEYS = {
    '"': re.compile(r'[^<>\n"]{0,256}'),
    "'": re.compile(r"[^<>\n']{0,256}"),
    "": re.compile(r"[^<>\n\"'\s]{0,256}"),
}
_ATTRIBUTES = (
    r"\s+name=(?P<quote>[\"']?)(?P<key>[^<>\n\"']{1,256})(?P=quote)(?:\s+string=\"(?P<word>true|false)\")?\s*>"
)


class Dsml(Format):
    """`wrapper`: the tag around all calls, which may be missing; `also`: its other names. `prefix`: the beginning of
    every tag. `arguments`: keys in which models sometimes wrap all arguments."""

    def __init__(
        self,
        name: str,
        wrapper: str,
        prefix: str = "｜DSML｜",
        also: tuple[str, ...] = (),
        arguments: tuple[str, ...] = ("arguments", "input"),
    ) -> None:
        self.name = name
        self._wrapper, self._also = wrapper, also
        self.opens = tuple(f"<{prefix}{tag}>" for tag in (wrapper, *also))
        self.closes = tuple(f"</{prefix}{tag}>" for tag in (wrapper, *also))
        self._outer, self._arguments = self.closes, arguments
        self._invoke, self._invoke_end = f"<{prefix}invoke", f"</{prefix}invoke>"
        self._parameter, self._parameter_end = f"<{prefix}parameter", f"</{prefix}parameter>"
        self._invoked = SPACED + literal("name=") + rf"(?:\Z|[\"']?{NAMED})"
        self.markers = (*self.opens, self._invoke)
        self.closers = (*self.closes, self._invoke_end)
        self._inner = re.compile(re.escape(self._parameter) + _ATTRIBUTES)
        self._end = value_end(self._parameter_end, self._parameter, self._invoke_end, *self.closes)

    @property
    def variants(self) -> tuple[Format, ...]:
        """The same notation with other bars, and with blanks around them or without."""
        if "DSML" not in self._invoke:
            return ()
        shapes = ("{0}DSML{0}", "{0}DSML{0} ", " {0} DSML {0} ", "{0} DSML {0} ", "{0} DSML {0}")
        prefixes = [shape.format(bar) for bar in ("｜", "|", "｜｜", "||") for shape in shapes]
        made = (Dsml(self.name, self._wrapper, prefix, self._also, self._arguments) for prefix in prefixes)
        return tuple(one for one in made if one.markers != self.markers)

    def follow(self, marker: str) -> str:
        return self._invoked if marker == self._invoke else SPACED + literal(self._invoke) + self._invoked

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        cursor.expect(self._invoke)
        quote = self._name(cursor)
        name = read_name(cursor, tools)
        if quote:
            cursor.expect(quote)
        cursor.space()
        cursor.expect(">")
        arguments: dict[str, Any] = {}
        while True:
            cursor.space()
            if cursor.skip(self._parameter):
                key, word = self._argument(cursor)
                for part_key, part_word, part in self._parts(key, word, read_value(cursor, self._end), name, tools):
                    arguments[part_key] = self._value(part_key, part_word, part, name, tools)
            elif cursor.close(self._invoke_end, min_prefix=2) or cursor.at(*self._outer):
                return make_call(cursor, name, self.unwrapped(arguments, name, tools))
            else:
                cursor.fail(cursor.pos + 1)

    def _name(self, cursor: Cursor) -> str:
        """Move to the name in a tag. Returns the quote before it, or ""."""
        before = cursor.pos
        cursor.space()
        if cursor.pos == before and cursor.pos < len(cursor.text):
            cursor.fail(cursor.pos + 1)
        cursor.expect("name=")
        return '"' if cursor.skip('"') else "'" if cursor.skip("'") else ""

    def _argument(self, cursor: Cursor) -> tuple[str, str]:
        """(an argument's name, the value of its `string` attribute: "true", "false" or "")."""
        quote = self._name(cursor)
        key = cursor.run(_KEYS[quote])
        if quote:
            cursor.expect(quote)
        cursor.space()
        word = "true" if cursor.skip('string="true"') else "false" if cursor.skip('string="false"') else ""
        cursor.space()
        cursor.expect(">")
        return key.strip(), word

    def _parts(self, key: str, word: str, value: str, name: str, tools: OfferedTools) -> list[tuple[str, str, str]]:
        """An argument, split if its closing tag was missing and its value contains the arguments behind it. Only a tag
        that opens another argument *of this tool* splits it; any other tag is part of the value."""
        parts, start = [], 0
        closed = value.find(self._parameter_end)
        for match in self._inner.finditer(value, 0, closed if closed >= 0 else len(value)):
            if tools.declares(name, match["key"]):
                parts.append((key, word, value[start : match.start()]))
                key, word, start = match["key"], match["word"] or "", match.end()
        return [*parts, (key, word, value[start:])]

    def _value(self, key: str, word: str, text: str, name: str, tools: OfferedTools) -> Any:
        """The value of an argument. The schema decides its type; if it allows several, the `string` attribute does."""
        types = tools.types(name, key)
        if word == "true" and (types == ANY or "string" in types):
            return text
        return tools.fitted(name, key, typed(text, ANYTHING if word == "false" and types == ANY else types))

    def unwrapped(self, arguments: dict[str, Any], name: str, tools: OfferedTools) -> dict[str, Any]:
        """The arguments without a key that wraps all of them, if the tool does not declare that key."""
        if len(arguments) != 1:
            return arguments
        ((key, inner),) = arguments.items()
        if key not in self._arguments or tools.declares(name, key):
            return arguments
        if isinstance(inner, str):
            try:
                inner = json.loads(inner, strict=False)
            except (ValueError, RecursionError):
                return arguments
        if not isinstance(inner, dict) or not inner or not all(tools.declares(name, inner_key) for inner_key in inner):
            return arguments
        return {inner_key: tools.fitted(name, inner_key, value) for inner_key, value in inner.items()}


CALLS, CALLS_END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"


class Step3(Dsml):
    """`<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="..."><steptml:parameter name="...">...` in
    `<｜tool_calls_begin｜>`: wrappers that look like DeepSeek V3's, each of which may be missing."""

    def __init__(self) -> None:
        super().__init__("step3", "invokes", prefix="steptml:", arguments=())
        self.opens, self.closes = (CALLS,), (CALLS_END,)
        self.markers = (CALLS, CALL, self._invoke)
        self.closers = (CALLS_END, CALL_END, self._invoke_end)

    def follow(self, marker: str) -> str:
        invoke = SPACED + literal(self._invoke) + self._invoked
        function = SPACED + literal("function") + SPACED + literal(SEPARATOR) + invoke
        if marker == CALLS:
            return f"{SPACED}(?:{literal(CALL)}{function}|{literal(self._invoke)}{self._invoked})"
        return function if marker == CALL else self._invoked

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        wrapped = cursor.skip(CALL)
        if wrapped:
            cursor.space()
            cursor.expect("function")
            cursor.space()
            cursor.expect(SEPARATOR)
            cursor.space()
        call = super().read_call(cursor, tools)
        if wrapped:
            cursor.close(CALL_END)
        return call
