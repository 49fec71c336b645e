"""The tool calls of one choice: those that the backend sent as calls, in parts, and those that were found in its
text."""

from __future__ import annotations

import random
import re
from typing import Any

import msgspec

from gateway.inspection.arguments import Arguments, is_object
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.segments import Call

_decode = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode
# A piece of arguments that may stand behind their end, or break a string of theirs: as text, and as JSON writes it.
_BEHIND = r"\}\s*[<`{]|[\x00-\x1f]"
_ODD_FIRST = re.compile(rf"\s*(?:[\"`<n]|\{{\s*[^\"}}\s]|\{{\}}\s*\Z)|.*?(?:{_BEHIND})", re.DOTALL)
_ODD = re.compile(rf"\s*[{{<`]|.*?(?:{_BEHIND})", re.DOTALL)
_ODD_WRITTEN = re.compile(rb"\s*[{<`]|.*?(?:\}\s*[<`{]|(?<!\\)(?:\\\\)*\\[nrtbf])")
# What models and servers write around a name: namespaces, the number of the call, marks of gpt-oss' channels.
_AROUND = re.compile(r"(?:functions?|default_api|tools?|tool_calls?)[.:/]")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.:/-]+)")
_NAMED_WITHIN = re.compile(r"\s*([\w.-]{1,64})\s*(?=```)")
_NAME_MOST = 200  # characters that are looked through for it
_NUMBER = re.compile(r":\d+\Z")


def decoded_piece(piece: bytes) -> str:
    """The text of a piece of a JSON string, which has no quotes around it."""
    return _decode(b'"%b"' % piece)


class _ToolCall:
    __slots__ = ("arguments", "id", "mends", "name")

    def __init__(self, name: str, arguments: list[str | bytes], id_: object = None) -> None:
        """`arguments`: their pieces; bytes are as JSON writes a string, without its quotes."""
        self.name = name
        self.arguments = arguments
        self.id = id_
        self.mends: Arguments | None = None  # set once a piece of the arguments was odd: the others go through it

    def take(self, piece: str) -> str:
        """What of this piece of the arguments goes on to the client; the rest comes with `finish`."""
        if self.mends is None and (_ODD if self.arguments else _ODD_FIRST).match(piece) is not None:
            self.mends = Arguments()
            self.mends.begin(self.text())
        if self.mends is not None:
            piece = self.mends.feed(piece)
        if piece:
            self.arguments.append(piece)
        return piece

    def leave(self) -> str:
        """The rest of the arguments, where they were held: another call begins."""
        rest = self.mends.finish() if self.mends is not None else ""
        self.arguments.append(rest)
        return rest

    def finish(self, *, cut: bool) -> str:
        """The rest of the arguments; none at all are an empty object. `cut`: a limit has ended them."""
        rest = self.mends.rest() if cut and self.mends is not None else self.leave()
        return rest or ("" if cut or self.text().strip() else "{}")

    def text(self) -> str:
        """The arguments that have come."""
        parts = [piece if isinstance(piece, str) else decoded_piece(piece) for piece in self.arguments]
        return "".join(parts)


class ToolCalls:
    """Numbers the calls in the order of arrival, and checks them. `whole`: they come at once, with the arguments that
    `mended_whole` has made."""

    __slots__ = ("_calls", "_places", "_whole")

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
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
        missing (without one the client could not return the result), a name with marks of the model around it, or
        arguments that are no JSON, or an object instead of its text."""
        changed = write_arguments(calls)
        for i, call in enumerate([*calls]):
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
                if self._calls and (rest := self._calls[-1].leave()):
                    calls.insert(calls.index(call), _more(len(self._calls) - 1, rest))
                    changed = True
                place = self._places[key] = len(self._calls)
                self._calls.append(_ToolCall("", [], call.get("id")))
            if place != given:
                call["index"] = place
                changed = True
            noted = self._calls[place]
            noted.name += name if isinstance(name, str) else ""
            if not isinstance(arguments, str) or not arguments:
                continue
            if self._whole:
                noted.arguments.append(arguments)
            elif (taken := noted.take(arguments)) != arguments:
                function["arguments"] = taken
                changed = True
        return changed

    def _key(self, id_: object, name: object) -> object:
        """The key of a part without an index: a name or another id begins a call, else the latest one goes on."""
        if self._calls and not name and (not id_ or id_ == self._calls[-1].id):
            latest = len(self._calls) - 1
            return next((key for key, place in self._places.items() if place == latest), f"call {latest}")
        return f"call {len(self._calls)}"

    def add_piece(self, index: int, text: bytes) -> bool:
        """Add a piece of the arguments of a call that has begun. `text`: as JSON writes it, without quotes. False:
        nothing was done, because there is no call with this index, or it has another one for the client."""
        if self._places.get(index) != index or _ODD_WRITTEN.match(text) is not None:
            return False
        call = self._calls[index]
        if call.mends is not None or not call.arguments:
            return False
        call.arguments.append(text)
        return True

    def finish(self, *, cut: bool) -> list[dict[str, Any]]:
        """The rest of the arguments of each call that the server sent as one, as items of a delta's `tool_calls`.
        `cut`: a limit has ended the answer."""
        streamed = () if self._whole else self._calls
        ends = [(place, call.finish(cut=cut)) for place, call in enumerate(streamed) if call.name]
        return [_more(place, rest) for place, rest in ends if rest]

    @property
    def mended(self) -> bool:
        """Do the arguments of a call differ from what came?"""
        return any(call.mends is not None and call.mends.mended for call in self._calls)

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


def _more(place: int, arguments: str) -> dict[str, Any]:
    return {"index": place, "function": {"arguments": arguments}}


def write_arguments(calls: list[Any]) -> bool:
    """Write arguments that are an object, as in Ollama's API, as text, in place. Returns True if there were any."""
    changed = False
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(given := function.get("arguments"), dict):
            function["arguments"] = _encode(given).decode()
            changed = True
    return changed


def mended_whole(calls: list[Any]) -> list[Any]:
    """The calls of a whole answer, with arguments that are JSON where that can be made of them; `calls` itself where
    nothing is to be changed."""
    made = [_mended_whole(call) if isinstance(call, dict) else call for call in calls]
    return calls if all(one is call for one, call in zip(made, calls, strict=True)) else made


def _mended_whole(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    given = function.get("arguments")
    text = "" if given is None else given
    if not isinstance(text, str) or is_object(text):
        return call
    if function.get("name") == "function" and (named := _NAMED_WITHIN.match(text[:_NAME_MOST])) is not None:
        function = {**function, "name": named[1]}  # of DeepSeek-V3, read as one of V3.1
        text = text[named.end() :]
    arguments = Arguments()
    text = arguments.feed(text) + arguments.finish()
    return {**call, "function": {**function, "arguments": text if text.strip() else "{}"}}


def _plain_name(name: str, tools: OfferedTools) -> str:
    """The name of the offered tool that is meant: without what models and servers write around it."""
    if tools.has(name):
        return name
    to = _RECIPIENT.search(name)
    plain = to[1] if to is not None else name.partition("<|")[0].strip(" \t\n\r\"'`")
    short = _NUMBER.sub("", _AROUND.sub("", plain, count=1))
    return next((one for one in (plain, short) if tools.has(one)), None) or tools.like(short) or name


def _is_another(call: _ToolCall, id_: object) -> bool:
    """Is a part with a name and this id of another call than `call`? Some servers give all calls the index 0."""
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
