"""A request of the Messages API and its answer, for the exchange around them: the events of a chat stream become those
of a message, whose text, thoughts and calls are content blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.apps.dialects.anthropic.answer import (
    envelope,
    head,
    message_id_of,
    retry_header,
    stop_of,
    to_message,
    usage_of,
)
from gateway.apps.dialects.anthropic.request import chat_of
from gateway.apps.dialects.chat import ChatAnswer, ChatChoice, StreamTranslator, arguments_of
from gateway.apps.dialects.translated import Translation
from gateway.domain.upstream import ProtocolFailure

_encode = msgspec.json.Encoder().encode
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":"'
_DELTA_END = b'"}}\n\n'


@dataclass(slots=True)
class _Call:
    """`block`: its index. `arguments`: their text so far."""

    block: int
    arguments: list[str] = field(default_factory=list)
    ended: bool = False


class MessageStream(StreamTranslator):
    """One message."""

    TEXT, THOUGHTS = ("text", "text_delta"), ("thinking", "thinking_delta")
    passes_unread = True

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self._request_id = request_id
        self._blocks = 0  # blocks begun so far
        self._open: object = None  # kind of the open block: TEXT, THOUGHTS, or the index of a call
        self._delta = b""  # the events of the open text up to their text
        self._calls: dict[object, _Call] = {}  # by the call's index in the chat
        self._stop: tuple[str, str | None] = ("end_turn", None)

    def _is_open(self, kind: tuple[str, str]) -> bool:
        return self._open is kind

    def _open_text(self, kind: tuple[str, str]) -> None:
        name, delta = kind
        signature = {"signature": ""} if kind is self.THOUGHTS else {}
        self._begin_block(kind, {"type": name, name: "", **signature})
        self._delta = _DELTA % (self._blocks - 1, delta.encode(), name.encode())

    def _go_on(self, raw: bytes) -> None:
        self._out.append(self._delta + raw + _DELTA_END)

    def _begin(self, chunk: ChatAnswer | None = None) -> None:
        if not self._begun and chunk is not None:
            self._begun = True
            message = {**head("msg_" + self._request_id, chunk.model), "usage": usage_of(chunk.usage)}
            self._send("message_start", message=message)

    def _finish(self, choice: ChatChoice) -> None:
        self._stop = stop_of(choice.finish_reason, choice.stop_reason)

    def _heartbeat(self) -> None:
        self._out.append(_PING)

    def _fail(self, data: bytes) -> None:
        self._out.append(b"event: error\ndata: " + envelope(None, data, self._request_id) + b"\n\n")

    def _add_to_call(self, index: int, id_: str | None, function: dict[str, Any]) -> None:
        call = self._calls.get(index)
        if call is None:
            name = function.get("name")
            if name is None:
                raise ProtocolFailure("sent a tool call without a name")
            self._begin_block(index, {"type": "tool_use", "id": message_id_of(id_), "name": name, "input": {}})
            call = self._calls[index] = _Call(self._blocks - 1)
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            return
        if not call.arguments:
            arguments = arguments.lstrip()  # the anthropic SDK fails on a first part of white space only
        if arguments and not call.ended:
            call.arguments.append(arguments)
            delta = _DELTA % (call.block, b"input_json_delta", b"partial_json")
            self._out.append(delta + _encode(arguments)[1:-1] + _DELTA_END)

    def _begin_block(self, holds: object, block: dict[str, Any]) -> None:
        self._close()
        self._frame = None
        self._white = ""
        self._send("content_block_start", index=self._blocks, content_block=block)
        self._open = holds
        self._blocks += 1

    def _close(self) -> None:
        """End the open block, unless it is a call with incomplete arguments: the rest may come after other calls."""
        open_, self._open = self._open, None
        call = self._calls.get(open_)
        if call is not None:
            call.ended = arguments_of("".join(call.arguments)) is not None
        if open_ is not None and (call is None or call.ended):
            self._send("content_block_stop", index=self._blocks - 1)

    def _end(self) -> None:
        self._close()
        for call in self._calls.values():
            if not call.ended:
                self._send("content_block_stop", index=call.block)
        why, sequence = self._stop
        end = {"stop_reason": why, "stop_sequence": sequence}
        self._send("message_delta", delta=end, usage=usage_of(self._usage))
        self._out.append(_STOP)

    def _send(self, type_: str, **fields: object) -> None:
        self._out.append(b"event: %b\ndata: %b\n\n" % (type_.encode(), _encode({"type": type_, **fields})))


class MessageTranslation(Translation):
    def __init__(self) -> None:
        self._request_id = ""
        self._stream = MessageStream("")

    def request(self, body: bytes) -> bytes:
        chat, self.left_out, self.session = chat_of(body)
        return chat

    def begin(self, request_id: str) -> list[tuple[bytes, bytes]]:
        self._request_id = request_id
        self._stream = MessageStream(request_id)
        return [(b"request-id", request_id.encode("latin-1")), *super().begin(request_id)]

    def whole(self, body: bytes) -> bytes:
        return to_message(body, "msg_" + self._request_id)

    def error(self, status: int, body: bytes) -> tuple[bytes, dict[bytes, bytes]]:
        return envelope(status, body, self._request_id), retry_header(status)

    def events(self, events: Iterable[bytes], hold: Callable[[int], object]) -> bytes:
        return self._stream.translate(events, hold)
