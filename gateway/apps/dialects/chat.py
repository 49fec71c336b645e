"""A backend's chat answers, as the translators read them: whole answers, errors, and the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gateway.domain.body import value_of
from gateway.domain.upstream import ProtocolFailure
from gateway.inspection.shape import fault_in_delta
from gateway.transport.sse import DONE, data_of

TEXT_MOST = 16 * 1024 * 1024  # bytes of text that is kept of one answer: more is a protocol failure
_STEP = 64 * 1024  # bytes of kept texts that are counted at a time
_KINDS = {"content": "TEXT", "reasoning": "THOUGHTS", "reasoning_content": "THOUGHTS"}  # by the field of a delta

_encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.Decoder(Any).decode


class ChatChoice(msgspec.Struct):
    """`message` of a whole answer, `delta` of a chunk, `text` of a completion. `stop_reason` is vLLM's: the stop
    string, or the stop token's id."""

    message: Any = None
    delta: Any = None
    text: Any = None
    logprobs: Any = None
    finish_reason: Any = None
    stop_reason: Any = None


class ChatAnswer(msgspec.Struct):
    """A whole answer, or a chunk of a stream."""

    model: Any = None
    choices: list[ChatChoice] | None = None
    usage: Any = None
    error: Any = None


_decode_answer = msgspec.json.Decoder(ChatAnswer).decode


def answer_of(body: bytes, what: str) -> tuple[ChatAnswer, ChatChoice, dict[str, Any]]:
    """A chat answer (which `fault_in_message` has passed), its choice, and the message of that. Raises ProtocolFailure:
    it is no `what`."""
    try:
        answer = _decode_answer(body)
        choice = (answer.choices or [])[0]
        return answer, choice, choice.message or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError) as error:
        raise ProtocolFailure(f"its answer cannot be translated to {what}: {error}") from None


def error_in(body: bytes) -> dict[str, Any]:
    """The error object in OpenAI's envelope; anything else becomes its message."""
    found = _decode_any(body)
    error = found.get("error") if isinstance(found, dict) else found
    return error if isinstance(error, dict) else {"message": error}


def chunk_of(data: bytes | None) -> ChatAnswer | None:
    """The data of an event; None for a comment, and for an event that is not JSON."""
    try:
        return _decode_answer(data) if data is not None else None
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
    arguments = value_of(text)
    return arguments if isinstance(arguments, dict) else None


def sole_text_of(chunk: ChatAnswer) -> tuple[str, Any] | None:
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


def uncounted(_: int) -> None:
    """For texts that nobody counts."""


class StreamTranslator:
    """The events of a chat stream as those of another API, without effects. The text, thoughts and calls of an answer
    are blocks there with a beginning and an end, one after the other; a chat has only deltas. So a block begins with
    the first delta of its kind and ends with the first delta of another kind. Only the blocks of interleaved calls stay
    open side by side, because clients treat a block as complete, and run a call, when it ends."""

    TEXT: Any  # the kinds of blocks
    THOUGHTS: Any
    passes_unread = False  # clients skip events that are not JSON

    def __init__(self) -> None:
        self._begun = False
        self._frame: tuple[bytes, bytes] | None = None  # around the text in the events of the open block
        self._white = ""  # white space that may turn out to begin a text
        self._size = self._held = 0  # bytes of texts that are kept, and those that `hold` knows
        self._usage: Any = None
        self._out: list[bytes] = []

    def translate(self, events: Iterable[bytes], hold: Callable[[int], object] = uncounted) -> bytes:
        """The bytes to send for these whole events. Raises ProtocolFailure for a chunk that cannot be translated, and
        the error of `hold` when the kept bytes are too many. Nearly all events of a block differ from an earlier one
        only in their text, whose bytes are copied, because both are JSON strings."""
        for event in events:
            raw = None if self._frame is None else framed_text(event, *self._frame)
            if raw is None:
                self._translate_event(event)
            else:
                self._go_on(raw)
        if self._size - self._held > _STEP:
            hold(self._size - self._held)
            self._held = self._size
        out = b"".join(self._out)
        self._out.clear()
        return out

    def _translate_event(self, event: bytes) -> None:
        data = data_of(event)
        if data == DONE:
            self._end()
            return
        chunk = chunk_of(data)
        if chunk is None or data is None:  # a comment, or an event that is not JSON
            if data is None or self.passes_unread:
                self._out.append(event)
        elif chunk.error is not None:
            self._fail(data)
        else:
            self._translate_chunk(chunk)
            sole = sole_text_of(chunk) if self._frame is None else None
            kind = _KINDS.get(sole[0]) if sole is not None else None
            if sole is not None and kind is not None and self._is_open(getattr(self, kind)):
                self._frame = frame_of(event, *sole)

    def _translate_chunk(self, chunk: ChatAnswer) -> None:
        if chunk.usage is not None:
            self._usage = chunk.usage
        before = len(self._out)
        self._begin(chunk)
        for choice in chunk.choices or ():
            if (fault := fault_in_delta(choice.delta)) is not None:
                raise ProtocolFailure(fault)
            if choice.delta:
                self._translate_delta(choice.delta)
            if choice.finish_reason is not None:
                self._finish(choice)
            elif len(self._out) == before:
                self._heartbeat()

    def _translate_delta(self, delta: dict[str, Any]) -> None:
        if thoughts := thoughts_of(delta):
            self._add(self.THOUGHTS, thoughts)
        if text := text_of(delta):
            self._add_text(text)
        for call in delta.get("tool_calls") or ():
            index = call.get("index", 0)
            self._add_to_call(index if isinstance(index, int) else 0, call_id_of(call), call.get("function") or {})

    def _add_text(self, text: str) -> None:
        """White space alone, which models put around thoughts and calls, begins no block."""
        if not self._is_open(self.TEXT):
            text = self._white + text
            self._white = text if text.isspace() else ""
            if self._white:
                if len(text) > TEXT_MOST:
                    raise ProtocolFailure(f"sent more than {TEXT_MOST:,} bytes of white space")
                return
        self._add(self.TEXT, text)

    def _add(self, kind: Any, text: str) -> None:
        if not self._is_open(kind):
            self._open_text(kind)
        self._go_on(_encode(text)[1:-1])

    def _is_open(self, kind: Any) -> bool:
        raise NotImplementedError

    def _open_text(self, kind: Any) -> None:
        """Begin a block of text or thoughts, and end the one before it."""
        raise NotImplementedError

    def _go_on(self, raw: bytes) -> None:
        """Send more text of the open block. `raw`: the inside of a JSON string."""
        raise NotImplementedError

    def _add_to_call(self, index: int, id_: str | None, function: dict[str, Any]) -> None:
        raise NotImplementedError

    def _begin(self, chunk: ChatAnswer | None = None) -> None:
        """Begin the answer, unless it has begun."""
        raise NotImplementedError

    def _finish(self, choice: ChatChoice) -> None:
        """Note how the answer ended."""
        raise NotImplementedError

    def _heartbeat(self) -> None:
        raise NotImplementedError

    def _fail(self, data: bytes) -> None:
        """`data`: an error in OpenAI's envelope."""
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError
