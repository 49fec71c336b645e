"""What a server answers at its own `/v1/responses`, as the answer of a chat, so that it is checked and mended as one.

Each event of a stream becomes one chunk, and the whole answer one answer of a chat. Each has, beside the fields of a
chat, the original in the field `ORIGINAL`, with a number and a checksum of the choices. Where the checks have changed
nothing, the original is sent to the client (relayed.py); else what has become of the chat is
translated.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Raw

from gateway.domain.upstream import ProtocolFailure, Response, read_counted
from gateway.engines.base import TranslatedResponse
from gateway.large_bodies import LARGE, apart
from gateway.transport.sse import DONE, Counted, Framer, HeldBytes, data_of

ORIGINAL = "original_" + secrets.token_hex(8)
"""The field's name, which no server can know."""

WHOLE_MOST = 64 * 1024 * 1024  # bytes of a whole answer
TIME_MOST = 10**11  # Unix seconds
REPEATS = 50  # equal deltas in a row that count as garbage, as in a stream of a chat

_ENDS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_CALLS = ("function_call", "custom_tool_call")
_PLAIN = ("message", "reasoning", *_CALLS)
_TEXTS = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}

_encode = msgspec.json.Encoder().encode
Object = dict[str, Any]


class _UpstreamEvent(msgspec.Struct):
    """The fields of an event that are read."""

    type: Any = None
    delta: Any = None
    arguments: Any = None
    item: Any = None
    item_id: Any = None
    response: Any = None
    error: Any = None
    message: Any = None


CALLS_MOST = 1024  # calls in one response
_decode = msgspec.json.Decoder(_UpstreamEvent).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class ResponseReader:
    """Reads one stream. `read` takes whole events and returns those of a chat. `violation`: as an engine's own."""

    def __init__(self) -> None:
        self._head: Object = {}
        self._number = 0
        self._calls: dict[str, tuple[int, bool]] = {}  # by the item's id: (index, has it arguments?)
        self._begun = 0  # calls so far
        self._has_output = False  # it had text, thoughts or a call
        self._last: object = None  # delta
        self._same = 0
        self._ended = False
        self.violation: str | None = None

    def read(self, events: Iterable[bytes]) -> bytes:
        return b"".join(self._chunk(event) for event in events if not self._ended)

    def _chunk(self, event: bytes) -> bytes:
        data = data_of(event)
        if not data:
            return event  # a comment
        if data == DONE:
            return b""
        try:
            read = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolFailure(f"sent an event that is none of a response: {error}") from None
        kind = read.type
        if not isinstance(kind, str) and read.error is None:
            raise ProtocolFailure("sent an event that is none of a response: it has no type")
        if not isinstance(kind, str) or kind in ("error", "response.failed") or read.error is not None:
            return b"data: " + _encode({"error": _error_of(read)}) + b"\n\n"
        whole = read.response if isinstance(read.response, dict) else {}
        if whole and not self._head:
            self._head = head_of(whole, "chat.completion.chunk")
        delta, finish, more = self._delta(kind, read), None, {}
        if kind in ("response.completed", "response.incomplete"):
            self._ended = True
            if not self._has_output:  # a server that streams nothing but the end
                delta = _streamed(message_of(whole))
            finish, more = end_of(whole, bool(self._begun) or "tool_calls" in delta), usage_of(whole)
        self._note(delta)
        choices = _encode([{"index": 0, "delta": delta, "finish_reason": finish}])
        fields = {**self._head, "choices": Raw(choices), **more, ORIGINAL: original_of(self._number, choices, data)}
        self._number += 1
        return b"data: " + _encode(fields) + b"\n\n" + (b"data: [DONE]\n\n" if self._ended else b"")

    def _delta(self, kind: str, event: _UpstreamEvent) -> Object:
        """The delta of a chat for this event; {} where it says nothing that a chat can say."""
        if (field := _TEXTS.get(kind)) is not None:
            return {field: event.delta} if event.delta else {}
        if kind == "response.output_item.added" and isinstance(event.item, dict):
            return self._begin(event.item)
        if kind == "response.function_call_arguments.delta":
            return self._arguments(event.item_id, event.delta)
        if kind == "response.function_call_arguments.done":
            _, begun = self._calls.get(str(event.item_id), (0, True))
            return {} if begun else self._arguments(event.item_id, event.arguments)
        return {}

    def _begin(self, item: Object) -> Object:
        kind = item.get("type")
        if kind == "function_call":
            index, arguments = self._begun, item.get("arguments")
            self._begun += 1
            if self._begun > CALLS_MOST:
                raise ProtocolFailure(f"sent more than {CALLS_MOST} calls in one response")
            self._calls[str(item.get("id"))] = index, bool(arguments)
            return {"tool_calls": [{"index": index, **_call_of(item)}]}
        return {} if kind in _PLAIN and kind != "custom_tool_call" else _foreign(item)

    def _arguments(self, item_id: Any, arguments: Any) -> Object:
        id_ = str(item_id)
        if id_ not in self._calls:
            raise ProtocolFailure("sent the arguments of a call that it had not begun")
        if not arguments:
            return {}
        index, _ = self._calls[id_]
        self._calls[id_] = index, True
        return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}

    def _note(self, delta: Object) -> None:
        self._has_output = self._has_output or bool(delta)
        if not delta:
            return
        self._same = self._same + 1 if delta == self._last else 0
        self._last = delta
        if self._same == REPEATS:
            self.violation = "garbage"  # one token again and again


class ResponseAsChatStream(TranslatedResponse):
    """The stream of a chat, read from a response's. `memory` counts what is kept beside what it returns."""

    def __init__(self, response: Response, memory: Counted | None = None, sender: str = "") -> None:
        super().__init__(response)
        self.headers = response.headers
        self._memory, self._sender = memory, sender
        self._framer, self._held = Framer(), HeldBytes(memory)
        self._reader = ResponseReader()

    @property
    def violation(self) -> str | None:
        return self._reader.violation

    async def read_some(self) -> bytes:
        while True:
            data = await self.upstream.read_some()
            out = self._reader.read(self._framer.feed(data) if data else self._framer.finish())
            self._held.set(self._framer.unfinished)
            if out or not data:
                return out


class ResponseAsChatAnswer(ResponseAsChatStream):
    """The whole answer of a chat, read from a response."""

    violation = None

    async def read_some(self) -> bytes:
        body = await read_counted(self.upstream, WHOLE_MOST, self._count)
        if not body:
            return b""
        self._count(len(body))  # read as JSON, it is there once more
        return chat_of(body) if len(body) <= LARGE else await apart(self._sender, lambda: chat_of(body))

    def _count(self, size: int) -> None:
        if self._memory is not None:
            self._memory.add(size)


def chat_of(body: bytes) -> bytes:
    """A whole response as the answer of a chat. Raises ProtocolFailure."""
    try:
        whole = _decode_object(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolFailure(f"answered with something that is no response: {error}") from None
    if whole.get("error") is not None or whole.get("status") == "failed":
        return _encode({"error": whole.get("error") or "the response failed"})
    if not isinstance(whole.get("output"), list):
        raise ProtocolFailure("answered 200 without `output`")
    message = message_of(whole)
    choices = _encode([{"index": 0, "message": message, "finish_reason": end_of(whole, "tool_calls" in message)}])
    head, more = head_of(whole, "chat.completion"), usage_of(whole)
    return _encode({**head, "choices": Raw(choices), **more, ORIGINAL: original_of(0, choices, body)})


def original_of(number: int, choices: bytes, data: bytes) -> Object:
    return {"number": number, "choices": crc32(choices), "data": Raw(data)}


def head_of(whole: Object, kind: str) -> Object:
    created = whole.get("created_at")
    id_ = whole.get("id")
    return {
        "id": id_ if isinstance(id_, str) else "",
        "object": kind,
        "created": int(created) if isinstance(created, (int, float)) and 0 <= created < TIME_MOST else 0,
        "model": whole.get("model"),
    }


def end_of(whole: Object, called: bool) -> str:
    """The finish_reason."""
    details = whole.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    if whole.get("status") == "incomplete":
        return _ENDS.get(reason, "length") if isinstance(reason, str) else "length"
    return "tool_calls" if called else "stop"


def usage_of(whole: Object) -> Object:
    """The usage in the form of a chat; {} where the response has none."""
    usage = whole.get("usage")
    if not isinstance(usage, dict):
        return {}
    named = {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "total_tokens": usage.get("total_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
        "completion_tokens_details": usage.get("output_tokens_details"),
    }
    return {"usage": named}


def message_of(whole: Object) -> Object:
    """The output of a response as the message of a chat."""
    output = whole.get("output")
    texts, thoughts, refusals, calls, others = [], [], [], [], {}
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict):
            raise ProtocolFailure("sent an item that is no object")
        kind = item.get("type")
        if kind == "message":
            texts += _texts(item.get("content"), "text")
            refusals += _texts(item.get("content"), "refusal")
        elif kind == "reasoning":
            thoughts += _texts(item.get("content"), "text") or _texts(item.get("summary"), "text")
        elif kind == "function_call":
            calls.append(_call_of(item))
        else:
            others = _foreign(item)
    message: Object = {"role": "assistant", "content": "".join(texts) or None, **others}
    if thoughts:
        message["reasoning"] = "\n".join(thoughts)
    if refusals:
        message["refusal"] = "".join(refusals)
    if calls:
        message["tool_calls"] = calls
    return message


def _streamed(message: Object) -> Object:
    """A message as one delta."""
    delta = {name: value for name, value in message.items() if value and name != "role"}
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    return delta


def _texts(parts: Any, name: str) -> list[str]:
    if parts is None:
        return []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise ProtocolFailure("sent an item whose content is no list of parts")
    found = [part.get(name) for part in parts]
    return [text for text in found if isinstance(text, str) and text]


def _call_of(item: Object) -> Object:
    function = {"name": item.get("name"), "arguments": item.get("arguments") or ""}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _foreign(item: Object) -> Object:
    """An item that no chat has (a search, a picture, ...). To the checks it is content of another kind than text."""
    return {"audio": {"id": str(item.get("id"))}}


def _error_of(event: _UpstreamEvent) -> Any:
    if event.error is not None:
        return event.error
    failed = event.response.get("error") if isinstance(event.response, dict) else None
    return failed or event.message or "the response failed"
