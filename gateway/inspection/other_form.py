"""Answers in another form than was asked for: a whole one where a stream was asked for, events where a whole one was.
Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.request import Endpoint
from gateway.inspection.assembler import Assembler, read_object
from gateway.inspection.shape import error_in
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
        lines = bare_objects(body)
        return b"".join(b"data: %b\n\n" % line for line in lines) + _DONE_EVENT if lines else None
    error = answer.get("error") if answer.get("error") is not None else error_in(body)
    if error is not None:
        return b"data: %b\n\n" % _encode({"error": error})
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        return None
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    head["object"] = endpoint.chunk_object
    chunks = [chunk for i, choice in enumerate(choices) for chunk in _chunks_of(choice, i)]
    if answer.get("usage") is not None:
        chunks.append({"choices": [], "usage": answer["usage"]})
    return b"".join(b"data: %b\n\n" % _encode({**head, **chunk}) for chunk in chunks) + _DONE_EVENT


def whole_as_events(data: bytes, endpoint: Endpoint) -> list[bytes]:
    """The events that say what one event says whose choices have messages, as whole answers do. Empty where they have
    none."""
    choices = _decode(data).get("choices")
    if not isinstance(choices, list) or not choices or not all(_has_message(choice) for choice in choices):
        return []
    return list(Framer().feed(events_of(data, endpoint) or b""))


def _has_message(choice: Any) -> bool:
    return isinstance(choice, dict) and choice.get("delta") is None and isinstance(choice.get("message"), dict)


def bare_objects(text: bytes) -> list[bytes]:
    """The JSON objects that make up this text: it as a whole, or each of its lines. Empty: it is something else."""
    text = text.strip()
    if text[:1] != b"{":
        return []
    for parts in ([text], text.split(b"\n")):
        lines = [part for part in parts if part.strip()]
        if all(_is_object(line) for line in lines):
            return lines
    return []


def _is_object(text: bytes) -> bool:
    try:
        _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


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
