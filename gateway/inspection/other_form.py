"""Answers in another form than was asked for: a whole one where a stream was asked for, events where a whole one was.
Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.request import Endpoint
from gateway.inspection.assembler import Assembler, read_object
from gateway.transport.sse import DONE, Framer, data_of, error_line

_BEGINNINGS = (b"data:", b"event:", b"id:", b"error:", b": ", b":\n")
_DONE_EVENT = b"data: %b\n\n" % DONE

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def begins_events(data: bytes) -> bool:
    """Is this the beginning of a stream of events, whatever its content type says?"""
    return data[:16].lstrip().startswith(_BEGINNINGS)


def events_of(body: bytes, endpoint: Endpoint) -> bytes | None:
    """A whole answer, or an error, as the events of a stream; None if the body is neither."""
    try:
        answer = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if answer.get("error") is not None:
        return b"data: %b\n\n" % _encode({"error": answer["error"]})
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        return None
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    head["object"] = endpoint.chunk_object
    chunks = [chunk for i, choice in enumerate(choices) for chunk in _chunks_of(choice, i)]
    if answer.get("usage") is not None:
        chunks.append({"choices": [], "usage": answer["usage"]})
    return b"".join(b"data: %b\n\n" % _encode({**head, **chunk}) for chunk in chunks) + _DONE_EVENT


def _chunks_of(choice: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The choice without its end, and its end."""
    said = {name: value for name, value in choice.items() if name not in ("message", "finish_reason")}
    said["index"] = number
    end: dict[str, Any] = {"index": number, "finish_reason": choice.get("finish_reason")}
    if "message" in choice:
        said["delta"], end["delta"] = _numbered(choice["message"]), {}
    else:
        end["text"] = ""
    return [{"choices": [said | {"finish_reason": None}]}, {"choices": [end]}]


def _numbered(message: Any) -> Any:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    return {
        **message,
        "tool_calls": [{**call, "index": i} if isinstance(call, dict) else call for i, call in enumerate(calls)],
    }


def whole_of(body: bytes, endpoint: Endpoint, most: int) -> bytes:
    """The whole answer that these events make up. Raises UpstreamFailure where they make up none."""
    framer, assembler = Framer(), Assembler(endpoint, most)
    for event in (*framer.feed(body), *framer.finish()):
        data = data_of(event) or error_line(event)
        if data == DONE:
            break
        if data:
            assembler.add(read_object(data))
    return assembler.finish()
