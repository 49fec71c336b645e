"""The interface of a tool-call format, and parsing steps that several formats share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.inspection.cursor import Cursor, NeedMore, NotACall
from gateway.inspection.offered_tools import OfferedTools, as_json
from gateway.inspection.segments import Call


class Parsed(NamedTuple):
    """The result of parsing the text from a marker on.

    `calls` and `consumed` characters | not a call (no calls) | `need_more`. `looked`: the number of characters from the
    marker on that decided it; the result is the same for every longer text."""

    calls: tuple[Call, ...] = ()
    consumed: int = 0
    looked: int = 0
    need_more: bool = False


NEED_MORE = Parsed(need_more=True)


def one_of(chars: str) -> str:
    """A pattern for one of a class of characters, or the end of the text."""
    return rf"(?:\Z|[{chars}])"


def literal(text: str) -> str:
    """A pattern for `text`, or as much of it as there is before the end of the text."""
    pattern = ""
    for char in reversed(text):
        pattern = rf"(?:\Z|{re.escape(char)}{pattern})"
    return pattern


class Format:
    """One way of writing tool calls as text. Stateless."""

    name: str
    markers: tuple[str, ...]  # the strings that can start a call
    closers: tuple[str, ...]  # the strings that may complete a call: only a hint when to parse it
    opens: tuple[str, ...] = ()  # the tags that open a wrapper around several calls, which may be missing
    closes: tuple[str, ...] = ()  # those that close it
    separators: str = ""  # characters, beside white space, that may stand between two calls
    only_at_start = False  # calls count only where no other content precedes them
    only_at_end = False  # calls count only where no other content follows them

    @property
    def variants(self) -> tuple[Format, ...]:
        """Other formats that go with this one."""
        return ()

    def follow(self, marker: str) -> str:
        """A pattern for what must follow `marker`; it also matches if the text ends too early. It is a quick test
        before `parse`. Empty if anything may follow."""
        return ""

    def parse(self, text: str, start: int, tools: OfferedTools, *, final: bool) -> Parsed:
        """Parse the call (or the calls of one wrapper) at `start`. `final`: the text will not grow."""
        cursor = Cursor(text, start, final=final)
        try:
            calls = self.read(cursor, tools)
        except NeedMore:
            return NEED_MORE
        except NotACall as error:
            return Parsed(looked=max(error.at, cursor.looked) - start)
        return Parsed(tuple(calls), cursor.pos - start, max(cursor.looked, cursor.pos) - start)

    def read(self, cursor: Cursor, tools: OfferedTools) -> list[Call]:
        """Read at least one call and leave the cursor behind it. Raises NeedMore or NotACall."""
        if not (self.opens and cursor.skip(*self.opens)):
            return [self.read_call(cursor, tools)]
        cursor.space()
        return several(cursor, lambda: self.read_call(cursor, tools), lambda: cursor.close(*self.closes))

    def read_call(self, cursor: Cursor, tools: OfferedTools) -> Call:
        """Read one call, without the wrapper. Raises as `read`."""
        raise NotImplementedError


SPACED = r"\s*+"
_KEYED = "{" + SPACED + one_of('"')
JSON_CALLS = rf"{SPACED}(?:\Z|\{_KEYED}|\[{SPACED}{one_of('{')})"  # an object with a key, or a list of objects
NAMED = one_of(r"^\s<>{}\[\]()\"'`,;=|｜\\")  # what a tool's name may begin with, as in cursor.NAME


def read_name(cursor: Cursor, tools: OfferedTools) -> str:
    return cursor.name(tools.has, tools.could_become)


def several(cursor: Cursor, one: Callable[[], Call], done: Callable[[], bool]) -> list[Call]:
    """Read calls until `done` reports that the wrapper is closed. Text that is no call ends the list; the calls before
    it count."""
    calls = [one()]
    while True:
        whole = cursor.pos
        try:
            if done():
                return calls
            cursor.space()
            calls.append(one())
        except NotACall as error:
            cursor.looked = max(cursor.looked, error.at)
            cursor.pos = whole
            return calls


def make_call(
    cursor: Cursor, name: str, arguments: Mapping[str, Any], fit: Callable[[str, str, Any], Any] | None = None
) -> Call:
    """The call, with its arguments as JSON. `fit`: `OfferedTools.fitted`, where models confuse declared types."""
    try:
        if fit is not None:
            arguments = {key: fit(name, key, value) for key, value in arguments.items()}
        return Call(name, as_json(arguments))
    except (ValueError, RecursionError):
        cursor.fail()


def call_of(cursor: Cursor, value: Any, tools: OfferedTools, *, fit: bool = False) -> Call:
    """The call that a JSON object describes: `name` (or `tool_name`) and `arguments` (or `parameters`), flat or under
    `function`. `fit`: its arguments are converted to the declared types."""
    function = value.get("function", value) if isinstance(value, dict) else None
    if isinstance(function, str) and isinstance(value, dict):
        function = {"name": function, **value}
    if not isinstance(function, dict):
        cursor.fail()
    name = function.get("name", function.get("tool_name"))
    if not isinstance(name, str) or name not in tools:
        cursor.fail()
    given = function.get("arguments", function.get("parameters"))
    if given is None and not tools.required(name):
        given = {}
    return make_call(cursor, name, as_object(cursor, given), tools.fitted if fit else None)


def as_object(cursor: Cursor, value: Any) -> dict[str, Any]:
    """Arguments as an object, also if they are a JSON string of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value, strict=False)
        except (ValueError, RecursionError):
            cursor.fail()
    if not isinstance(value, dict):
        cursor.fail()
    return value


_HEAD = re.compile(r'\s*\{\s*"(?:tool_)?name"\s*:\s*"([^"\\]*)"')
# A quick test before the decoder, whose errors are expensive: a key must follow a brace.
_BROKEN = re.compile(r'\s*\{\s*(?:[^\s"}]|"[^"\\]*"\s*[^\s:])')


def read_calls(cursor: Cursor, tools: OfferedTools, *, fit: bool = False) -> list[Call]:
    """Read a JSON object that describes a call, or a list of them. An object that names no offered tool is refused at
    its name. In a list that is cut off, or continues with something else, the calls before that count."""
    if not cursor.skip("["):
        return [_read_call(cursor, tools, fit)]
    cursor.space()
    return several(cursor, lambda: _read_call(cursor, tools, fit), lambda: cursor.close("]") or _next_item(cursor))


def _next_item(cursor: Cursor) -> bool:
    cursor.space()
    cursor.expect(",")
    return False


def _read_call(cursor: Cursor, tools: OfferedTools, fit: bool) -> Call:
    head = _HEAD.match(cursor.text, cursor.pos)
    if head and head.group(1) not in tools:
        cursor.fail(head.end())
    broken = _BROKEN.match(cursor.text, cursor.pos)
    if broken:
        cursor.fail(broken.end())
    cursor.space()
    if cursor.at("{") is None:
        cursor.fail(cursor.pos + 1)
    return call_of(cursor, cursor.json(), tools, fit=fit)


def read_object(cursor: Cursor) -> dict[str, Any]:
    """Read a JSON object; white space may precede it."""
    cursor.space()
    if cursor.at("{") is None:
        cursor.fail(cursor.pos + 1)
    return as_object(cursor, cursor.json())
