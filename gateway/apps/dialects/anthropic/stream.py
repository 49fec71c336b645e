"""The events of a chat stream as those of a message, without effects.

The text, thoughts and calls of a message are blocks with a beginning and an end, one after the other; a chat has only
deltas. So a block begins with the first delta of its kind and ends with the first delta of another kind. Only the
blocks of interleaved calls stay open side by side, because clients treat a block as complete when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.apps.dialects.anthropic.answer import head, message_id_of, stop_of, usage_of
from gateway.apps.dialects.anthropic.errors import envelope
from gateway.apps.dialects.chat import (
    ChatChunk,
    arguments_of,
    call_id_of,
    chunk_of,
    frame_of,
    framed_text,
    sole_text_of,
    text_of,
    thoughts_of,
)
from gateway.domain.upstream import ProtocolFailure
from gateway.inspection.shape import fault_in_delta
from gateway.transport.sse import DONE, data_of

_encode = msgspec.json.Encoder().encode
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":%b}}\n\n'
)
_DELTA_END = b'"}}\n\n'
_THINKING, _TEXT = ("thinking", "thinking_delta"), ("text", "text_delta")
_KINDS = {"content": _TEXT, "reasoning": _THINKING, "reasoning_content": _THINKING}  # by the field of a delta


@dataclass(slots=True)
class _Call:
    """`block`: its index. `arguments`: their text so far."""

    block: int
    arguments: list[str] = field(default_factory=list)
    ended: bool = False


class MessageStream:
    """One message. `translate` takes whole events and returns the bytes to send; it raises ProtocolFailure for a chunk
    that cannot be translated."""

    __slots__ = ("_begun", "_blocks", "_calls", "_frame", "_open", "_out", "_request_id", "_stop", "_usage", "_white")

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._begun = False
        self._blocks = 0  # blocks begun so far
        self._open: object = None  # kind of the open block: _THINKING, _TEXT, or the index of a call
        self._frame: tuple[bytes, bytes, bytes] | None = None  # see `_translate_fast`
        self._white = ""  # white space that may turn out to begin a text block
        self._calls: dict[object, _Call] = {}  # by the call's index in the chat
        self._stop: tuple[str, str | None] = ("end_turn", None)
        self._usage: Any = None
        self._out: list[bytes] = []

    def translate(self, events: Iterable[bytes]) -> bytes:
        for event in events:
            if self._frame is None or not self._translate_fast(event, self._frame):
                self._translate_event(event)
        out = b"".join(self._out)
        self._out.clear()
        return out

    def _translate_fast(self, event: bytes, frame: tuple[bytes, bytes, bytes]) -> bool:
        """Translate an event that differs from an earlier one of the same block only in its text, as nearly all do.
        `frame`: the bytes around the text in the event, and before it in the translation. The text's bytes are
        copied, because both are JSON strings. False = another kind of event."""
        before, after, head = frame
        raw = framed_text(event, before, after)
        if raw is None:
            return False
        self._out.append(head + raw + _DELTA_END)
        return True

    def _learn_frame(self, event: bytes, chunk: ChatChunk) -> None:
        """Learn the frame from an event with one delta of the open block and nothing else."""
        if (sole := sole_text_of(chunk)) is None:
            return
        field_, text = sole
        kind = _KINDS.get(field_)
        if kind is None or kind is not self._open:
            return
        if (frame := frame_of(event, field_, text)) is not None:
            delta_end = _DELTA % (self._blocks - 1, kind[1].encode(), kind[0].encode(), b'""')
            self._frame = *frame, delta_end.removesuffix(_DELTA_END)

    def _translate_event(self, event: bytes) -> None:
        data = data_of(event)
        if data == DONE:
            self._end()
            return
        chunk = chunk_of(data)
        if chunk is None:  # a comment, or an event that is not JSON
            self._out.append(event)
        elif chunk.error is not None:
            assert data is not None
            self._out.append(b"event: error\ndata: " + envelope(None, data, self._request_id) + b"\n\n")
        else:
            self._translate_chunk(chunk)
            if self._frame is None:
                self._learn_frame(event, chunk)

    def _translate_chunk(self, chunk: ChatChunk) -> None:
        if chunk.usage is not None:
            self._usage = chunk.usage
        before = len(self._out)
        if not self._begun:
            self._begun = True
            message = {**head("msg_" + self._request_id, chunk.model), "usage": usage_of(chunk.usage)}
            self._send("message_start", message=message)
        for choice in chunk.choices or ():
            if (fault := fault_in_delta(choice.delta)) is not None:
                raise ProtocolFailure(fault)
            if choice.delta:
                self._translate_delta(choice.delta)
            if choice.finish_reason is not None:
                self._stop = stop_of(choice.finish_reason, choice.stop_reason)
            elif len(self._out) == before:
                self._out.append(_PING)  # a heartbeat

    def _translate_delta(self, delta: dict[str, Any]) -> None:
        if thoughts := thoughts_of(delta):
            self._add(_THINKING, thoughts)
        if text := text_of(delta):
            self._add_text(text)
        for call in delta.get("tool_calls") or ():
            index = call.get("index", 0)
            id_ = message_id_of(call_id_of(call))
            self._add_to_call(index if isinstance(index, int) else 0, id_, call.get("function") or {})

    def _add_text(self, text: str) -> None:
        """White space alone, which models put around thoughts and calls, begins no block."""
        if self._open is not _TEXT:
            text = self._white + text
            self._white = text if text.isspace() else ""
            if self._white:
                return
        self._add(_TEXT, text)

    def _add(self, kind: tuple[str, str], text: str) -> None:
        name, delta = kind
        if self._open is not kind:
            signature = {"signature": ""} if kind is _THINKING else {}
            self._begin(kind, {"type": name, name: "", **signature})
        self._out.append(_DELTA % (self._blocks - 1, delta.encode(), name.encode(), _encode(text)))

    def _add_to_call(self, index: object, id_: object, function: dict[str, Any]) -> None:
        call = self._calls.get(index)
        if call is None:
            name = function.get("name")
            if name is None:
                raise ProtocolFailure("sent a tool call without a name")
            self._begin(index, {"type": "tool_use", "id": id_, "name": name, "input": {}})
            call = self._calls[index] = _Call(self._blocks - 1)
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            return
        if not call.arguments:
            arguments = arguments.lstrip()  # the anthropic SDK fails on a first part of white space only
        if arguments and not call.ended:
            call.arguments.append(arguments)
            self._out.append(_DELTA % (call.block, b"input_json_delta", b"partial_json", _encode(arguments)))

    def _begin(self, holds: object, block: dict[str, Any]) -> None:
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
