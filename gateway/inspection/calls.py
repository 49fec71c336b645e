"""The tool calls of one choice: those that the backend sent as calls, in parts, and those that were found in its
text."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.segments import Call

_decode = msgspec.json.Decoder(str).decode


def decoded_piece(piece: bytes) -> str:
    """The text of a piece of a JSON string, which has no quotes around it."""
    return _decode(b'"%b"' % piece)


class _ToolCall:
    __slots__ = ("arguments", "id", "name", "whole")

    def __init__(self, name: str, arguments: list[str | bytes], id_: object = None) -> None:
        """`arguments`: their pieces; bytes are as JSON writes a string, without its quotes."""
        self.name = name
        self.arguments = arguments
        self.id = id_
        self.whole = False  # the arguments are complete, and what came behind them repeated them

    def repeats(self, piece: str) -> bool:
        """Does this piece of the arguments repeat what is complete already? Some servers send all of it at the end of
        its pieces."""
        if not self.whole and self.arguments and piece.lstrip()[:1] == "{":
            self.whole = _is_object(self.text())
        return self.whole

    def text(self) -> str:
        """The arguments that have come."""
        parts = [piece if isinstance(piece, str) else decoded_piece(piece) for piece in self.arguments]
        return "".join(parts)


class ToolCalls:
    """Numbers the calls in the order of arrival, and checks them."""

    __slots__ = ("_calls", "_places")

    def __init__(self) -> None:
        self._calls: list[_ToolCall] = []
        self._places: dict[Any, int] = {}  # the backend's index of a call -> ours

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def first(self) -> str | None:
        """The name of the first call, as far as it has arrived; None = there is no call."""
        return self._calls[0].name if self._calls else None

    def add(self, call: Call) -> dict[str, Any]:
        """Add a call that was found in the text. Returns it as an item of a delta's `tool_calls`."""
        self._calls.append(_ToolCall(call.name, [call.arguments]))
        function = {"name": call.name, "arguments": call.arguments}
        return {"index": len(self._calls) - 1, "id": call_id(), "type": "function", "function": function}

    def note(self, calls: list[Any], tools: OfferedTools | None = None) -> bool:
        """Add calls, or parts of them, that the backend sent as calls. Returns True if something was changed, in place:
        an index (calls from the text precede it, it was no number, or the call before had it too), an id that was
        missing (without one the client could not return the result), a name with marks of the model behind it, or
        arguments that were repeated."""
        changed = False
        for i, call in enumerate(calls):
            if not isinstance(call, dict):
                continue
            function = call.get("function")
            function = function if isinstance(function, dict) else {}
            name, arguments = function.get("name"), function.get("arguments")
            given = call.get("index")
            key = self._key(call.get("id"), name) if given is None else i if isinstance(given, (list, dict)) else given
            if tools is not None and isinstance(name, str) and (plain := _plain_name(name, tools)) != name:
                name = function["name"] = plain
                changed = True
            place = self._places.get(key)
            if place is None or (name and _is_another(self._calls[place], call.get("id"))):
                if name and not call.get("id"):
                    call["id"], changed = call_id(), True
                place = self._places[key] = len(self._calls)
                self._calls.append(_ToolCall("", [], call.get("id")))
            if place != given:
                call["index"] = place
                changed = True
            noted = self._calls[place]
            noted.name += name if isinstance(name, str) else ""
            if not isinstance(arguments, str) or not arguments:
                continue
            if noted.repeats(arguments) or (once := _once(arguments)) != arguments:
                arguments = function["arguments"] = "" if noted.whole else once
                changed = True
            noted.arguments.append(arguments)
        return changed

    def _key(self, id_: object, name: object) -> object:
        """The key of a part without an index: a name, or another id, begins a call, anything else goes on with the
        latest one."""
        if self._calls and not name and (not id_ or id_ == self._calls[-1].id):
            latest = len(self._calls) - 1
            return next((key for key, place in self._places.items() if place == latest), f"call {latest}")
        return f"call {len(self._calls)}"

    def add_piece(self, index: int, text: bytes) -> bool:
        """Add a piece of the arguments of a call that has begun. `text`: as JSON writes it, without quotes. False:
        nothing was done, because there is no call with this index, or it has another one for the client."""
        if self._places.get(index) != index or self._calls[index].whole or text[:1] == b"{":
            return False  # what begins an object may repeat the arguments
        self._calls[index].arguments.append(text)
        return True

    def judge(self, tools: OfferedTools, violations: set[str], *, cut: bool) -> bool:
        """Add the violations of each call to `violations`. `cut`: the answer has as many tokens as were allowed.
        Returns False if that is why the last call is incomplete."""
        for call in self._calls:
            wrong = _fault(call, tools)
            if wrong is None:
                continue
            violations.add(wrong)
            if cut and call is self._calls[-1] and wrong in ("arguments_not_json", "missing_arguments"):
                return False
        return True


def _plain_name(name: str, tools: OfferedTools) -> str:
    """The name without the marks of gpt-oss' channels, and without its namespace, where that is what was offered."""
    if "<|" not in name and not name.startswith("functions."):
        return name
    plain = name.partition("<|")[0].strip()
    return next((one for one in (plain, plain.removeprefix("functions.")) if tools.has(one)), name)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _once(arguments: str) -> str:
    """Arguments that have come whole, and again, once; unchanged where they have not."""
    half, odd = divmod(len(arguments), 2)
    if odd or arguments[:1] != "{" or arguments[:half] != arguments[half:] or not _is_object(arguments[:half]):
        return arguments
    return arguments[:half]


def _is_another(call: _ToolCall, id_: object) -> bool:
    """Is a part with a name and this id of another call than `call`, which has its index? Some servers give each of
    several calls the index 0."""
    return bool(call.name and call.id and id_) and id_ != call.id


def _fault(call: _ToolCall, tools: OfferedTools) -> str | None:
    if not tools.has(call.name):
        return "unknown_tool"
    try:
        arguments = msgspec.json.decode(call.text() or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "arguments_not_json"
    if not isinstance(arguments, dict):
        return "arguments_not_json"
    return "missing_arguments" if tools.required(call.name) - arguments.keys() else None


def call_id() -> str:
    return f"call_{random.getrandbits(96):024x}"
