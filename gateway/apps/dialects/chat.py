"""A backend's chat answers, as the translators read them: whole answers, and the events of a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.upstream import ProtocolFailure

_encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.Decoder(Any).decode


class ChatChoice(msgspec.Struct):
    """Of a whole answer. `stop_reason` is vLLM's: the stop string, or the id of the stop token.
    `text`: of a completion."""

    message: dict[str, Any] = {}
    text: Any = None
    logprobs: Any = None
    finish_reason: Any = None
    stop_reason: Any = None


class ChatAnswer(msgspec.Struct):
    choices: list[ChatChoice]
    model: Any = None
    usage: Any = None


class ChatChunkChoice(msgspec.Struct):
    delta: Any = None
    text: Any = None
    logprobs: Any = None
    finish_reason: Any = None
    stop_reason: Any = None


class ChatChunk(msgspec.Struct):
    model: Any = None
    choices: list[ChatChunkChoice] | None = None
    usage: Any = None
    error: Any = None


_decode_answer = msgspec.json.Decoder(ChatAnswer).decode
_decode_chunk = msgspec.json.Decoder(ChatChunk).decode


def answer_of(body: bytes, what: str) -> tuple[ChatAnswer, ChatChoice]:
    """A chat answer (which `fault_in_message` has passed) and its choice. Raises ProtocolFailure when it cannot be
    translated to `what`."""
    try:
        answer = _decode_answer(body)
        return answer, answer.choices[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError) as error:
        raise ProtocolFailure(f"its answer cannot be translated to {what}: {error}") from None


def chunk_of(data: bytes | None) -> ChatChunk | None:
    """The data of an event; None for a comment, and for an event that is not JSON."""
    try:
        return _decode_chunk(data) if data is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def thoughts_of(message: dict[str, Any]) -> str:
    """The reasoning of a message or a delta, under either of its names; "" for none."""
    thoughts = message.get("reasoning") or message.get("reasoning_content")
    return thoughts if isinstance(thoughts, str) else ""


def text_of(message: dict[str, Any]) -> str:
    text = message.get("content") or message.get("refusal")
    if isinstance(text, list):  # a list of parts, as some clouds send it
        text = "".join(part["text"] for part in text if isinstance(part.get("text"), str))
    return text if isinstance(text, str) else ""


def call_id_of(call: dict[str, Any]) -> str | None:
    """A call's id as text, which clients require; some servers send a number."""
    id_ = call.get("id")
    return id_ if id_ is None else str(id_)


def arguments_of(text: str) -> dict[str, Any] | None:
    """A call's arguments; None when the text is not a complete JSON object."""
    try:
        arguments = _decode_any(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def sole_text_of(chunk: ChatChunk) -> tuple[str, Any] | None:
    """(field, its value) of a chunk that has one delta with one field, and says nothing else."""
    choices = chunk.choices or []
    if len(choices) != 1 or chunk.usage is not None or choices[0].finish_reason is not None:
        return None
    delta = choices[0].delta
    if not delta or len(delta) != 1:
        return None
    ((field, value),) = delta.items()
    return field, value


def frame_of(event: bytes, field: str, text: object) -> tuple[bytes, bytes] | None:
    """The bytes before and after `text` in an event whose delta has this `field` alone; None if its form is unusual.
    Nearly all events of a stream differ only in the text between them."""
    before, found, rest = event.partition(b'"%b":"' % field.encode())
    raw, _, after = rest.partition(b'"')
    return (before + found, b'"' + after) if found and b'"%b"' % raw == _encode(text) else None


def framed_text(event: bytes, before: bytes, after: bytes) -> bytes | None:
    """The text in an event of that frame, as the inside of a JSON string; None for another kind of event."""
    if not (event.startswith(before) and event.endswith(after)):
        return None
    raw = event[len(before) : -len(after)]
    return None if not raw or b'"' in raw else raw
