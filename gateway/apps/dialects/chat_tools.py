"""A chat that offers other tools than functions, as a chat of functions: OpenAI's custom tools become functions with
one text, tools that only a cloud runs are left out unless the client demands one, and functions in the form of another
API get a chat's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gateway.apps.dialects.fields import put, value_in
from gateway.apps.dialects.responses.tools import ToolName, chat_tools, custom_arguments, custom_input
from gateway.apps.dialects.translated import Translation
from gateway.domain.body import read_fields
from gateway.errors import GatewayError
from gateway.transport.sse import data_of

Object = dict[str, Any]

_CALL = b'"tool_calls"'
_NESTED = ("function", "custom", "allowed_tools")  # types whose fields a chat has under the type's name

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Object).decode


class ChatToolsTranslation(Translation):
    def __init__(self) -> None:
        self._custom: dict[str, ToolName] = {}  # by the function's name
        self._open: dict[tuple[object, object], Object] = {}  # a stream's custom calls, by choice and call

    def request(self, body: bytes) -> bytes:
        try:
            return self._request(body)
        except RecursionError:
            raise GatewayError("invalid_request_body", "The request body is nested too deeply.") from None

    def _request(self, body: bytes) -> bytes:
        fields = read_fields(body)
        given, choice = (value_in(fields.pop(name, None), name) for name in ("tools", "tool_choice"))
        tools = chat_tools([_flat(tool) for tool in given] if isinstance(given, list) else given, _choice(choice))
        self._custom = tools.names
        self.left_out = tuple(dict.fromkeys(tools.left_out))
        if tools.functions:
            put(fields, "tools", tools.functions)
            put(fields, "tool_choice", tools.choice)
        else:
            fields.pop("parallel_tool_calls", None)
        messages = value_in(fields.get("messages"), "messages") if b'"custom"' in body else None
        if isinstance(messages, list):
            put(fields, "messages", [_called(message) for message in messages])
        return _encode(fields)

    def whole(self, body: bytes) -> bytes:
        if not self._custom or _CALL not in body:
            return body
        answer = _decode(body)
        for choice in answer.get("choices") or ():
            for call in choice["message"].get("tool_calls") or ():
                self._rename(call)
        return _encode(answer)

    def _rename(self, call: Object) -> None:
        """Make a call of a custom tool of it, where it is one."""
        function = call.get("function") or {}
        if (tool := self._custom.get(str(function.get("name")))) is not None:
            del call["function"]
            call["type"], call["custom"] = "custom", {"name": tool.name, "input": custom_input(function["arguments"])}

    def events(self, events: Iterable[bytes], hold: Callable[[int], object]) -> bytes:
        if not self._custom:
            return b"".join(events)
        return b"".join([self._event(event, hold) for event in events])

    def _event(self, event: bytes, hold: Callable[[int], object]) -> bytes:
        """The arguments of a custom call are held until its choice ends: its text is inside them."""
        if not self._open and _CALL not in event:
            return event
        data = data_of(event)
        if data is None or not data.startswith(b"{"):
            return event
        chunk = _decode(data)
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if calls := [call for call in delta.get("tool_calls") or () if not self._holds(choice, call, hold)]:
                delta["tool_calls"] = calls
            else:
                delta.pop("tool_calls", None)
            if choice.get("finish_reason") is not None and (ended := self._end(choice.get("index"))):
                delta.setdefault("tool_calls", []).extend(ended)
                choice["delta"] = delta
        return b"data: %b\n\n" % _encode(chunk)

    def _holds(self, choice: Object, call: Object, hold: Callable[[int], object]) -> bool:
        key, function = (choice.get("index"), call.get("index")), call.get("function") or {}
        if function.get("name") in self._custom:
            self._open[key] = {**call, "function": {"name": function["name"], "arguments": ""}}
        held = self._open.get(key)
        if held is None:
            return False
        more = function.get("arguments") or ""
        held["function"]["arguments"] += more
        hold(len(more))
        return True

    def _end(self, choice: object) -> list[Object]:
        ended = [call for (of, _), call in self._open.items() if of == choice]
        self._open = {key: call for key, call in self._open.items() if key[0] != choice}
        for call in ended:
            self._rename(call)
        return ended


def _flat(tool: Any) -> Any:
    """A tool of a chat as the Responses API has it."""
    if not isinstance(tool, dict):
        return tool
    kind = tool.get("type", "function")
    flat = {**tool, "type": kind, **_inner(tool, kind)}
    if "input_schema" in flat and kind == "function":
        flat.setdefault("parameters", flat["input_schema"])  # Anthropic's
    form = flat.get("format")
    if isinstance(form, dict) and isinstance(form.get("grammar"), dict):
        flat["format"] = {**form, **form["grammar"]}
    return flat


def _choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    flat = {**choice, **_inner(choice, choice.get("type"))}
    if isinstance(flat.get("tools"), list):
        flat["tools"] = [_flat(tool) for tool in flat["tools"]]
    return flat


def _inner(value: Object, kind: object) -> Object:
    inner = value.get(kind) if isinstance(kind, str) and kind in _NESTED else None
    return inner if isinstance(inner, dict) else {}


def _called(message: Any) -> Any:
    """A turn of the history with its calls of custom tools as calls of functions."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_as_function(call) for call in calls]}


def _as_function(call: Any) -> Any:
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict):
        return call
    rest = {name: value for name, value in call.items() if name not in ("type", "custom")}
    function = {"name": custom.get("name"), "arguments": custom_arguments(str(custom.get("input") or ""))}
    return {**rest, "type": "function", "function": function}
