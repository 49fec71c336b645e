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
    __slots__ = ("arguments", "id", "name")

    def __init__(self, name: str, arguments: list[str | bytes], id_: object = None) -> None:
        """`arguments`: their pieces; bytes are as JSON writes a string, without its quotes."""
        self.name = name
        self.arguments = arguments
        self.id = id_

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

    def note(self, calls: list[Any]) -> bool:
        """Add calls, or parts of them, that the backend sent as calls. Returns True if an index was changed, in place
        (calls from the text precede it, it was no number, or the call before had it too), or an id added: without one
        the client could not return the result."""
        changed = False
        for i, call in enumerate(calls):
            if not isinstance(call, dict):
                continue
            given = call.get("index", i)
            key = i if isinstance(given, (list, dict)) else given
            function = call.get("function")
            function = function if isinstance(function, dict) else {}
            name, arguments = function.get("name"), function.get("arguments")
            place = self._places.get(key)
            if place is None or (name and _is_another(self._calls[place], call.get("id"))):
                if name and not call.get("id"):
                    call["id"], changed = call_id(), True
                place = self._places[key] = len(self._calls)
                self._calls.append(_ToolCall("", [], call.get("id")))
            if place != given:
                call["index"] = place
                changed = True
            self._calls[place].name += name if isinstance(name, str) else ""
            if isinstance(arguments, str):
                self._calls[place].arguments.append(arguments)
        return changed

    def add_piece(self, index: int, text: bytes) -> bool:
        """Add a piece of the arguments of a call that has begun. `text`: as JSON writes it, without quotes. False:
        nothing was done, because there is no call with this index, or it has another one for the client."""
        if self._places.get(index) != index:
            return False
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
