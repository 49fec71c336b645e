"""Answers of chats, completions and embeddings in Ollama's form: whole, as lines of a stream, and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from gateway.apps.dialects.chat import (
    ChatAnswer,
    answer_of,
    arguments_of,
    call_id_of,
    chunk_of,
    error_in,
    text_of,
    thoughts_of,
)
from gateway.domain.tokens import read_usage
from gateway.domain.upstream import ProtocolFailure
from gateway.inspection.shape import fault_in_delta
from gateway.transport.sse import DONE, data_of

_PART_COST = 100  # bytes that a part of a call takes beside its text

_encode = msgspec.json.Encoder().encode


class _Vector(msgspec.Struct):
    embedding: Raw


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    usage: Any = None


_decode_vectors = msgspec.json.Decoder(_Vectors).decode


def error_of(body: bytes) -> bytes:
    """OpenAI's envelope as Ollama's, which is the text alone; the gateway's `code` (docs/errors.md) is kept."""
    error = error_in(body)
    return _encode({"error": str(error.get("message")), "code": error.get("code")})


def time_text(at: float) -> str:
    """A time (Unix seconds) as Ollama writes it."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


class OllamaAnswer:
    """The answer to one request. `generates`: of `/api/generate`, whose text is `response`. `clock`: nanoseconds."""

    def __init__(self, model: str, at: float, *, generates: bool, clock: Callable[[], int]) -> None:
        self._head = {"model": model, "created_at": time_text(at)}
        self._generates, self._clock = generates, clock
        self._began = clock()
        self._first: int | None = None  # when the first content came
        self._calls: dict[object, dict[str, Any]] = {}  # of a stream, by their index
        self._finish: object = None
        self._usage: Any = None

    def loaded(self, *, unload: bool) -> bytes:
        """The answer to a request without a prompt."""
        return self._line("", "", [], None, done=True, done_reason="unload" if unload else "load")

    def whole(self, body: bytes) -> bytes:
        """Raises ProtocolFailure when the answer cannot be translated."""
        answer, choice, message = answer_of(body, "an answer of Ollama's")
        message = message if choice.text is None else {"content": choice.text}
        calls = [_call(call) for call in message.get("tool_calls") or []]
        self._usage, self._finish = answer.usage, choice.finish_reason
        return self._line(text_of(message), thoughts_of(message), calls, choice.logprobs, **self._end())

    def lines(self, events: Iterable[bytes], hold: Callable[[int], object]) -> bytes:
        """The lines of a stream from a chat's events. Calls are held until they are whole: Ollama's have no parts."""
        return b"".join([self._event(event, hold) for event in events])

    def _event(self, event: bytes, hold: Callable[[int], object]) -> bytes:
        data = data_of(event)
        if data == DONE:
            calls = [_call(_whole(call)) for call in self._calls.values()]
            before = self._line("", "", calls, None, done=False) + b"\n" if calls else b""
            return before + self._line("", "", [], None, **self._end()) + b"\n"
        chunk = chunk_of(data)
        if chunk is None:
            return b""  # a comment
        if chunk.error is not None:
            assert data is not None
            return error_of(data) + b"\n"
        return self._chunk(chunk, hold)

    def _chunk(self, chunk: ChatAnswer, hold: Callable[[int], object]) -> bytes:
        self._usage = chunk.usage or self._usage
        out = b""
        for choice in chunk.choices or ():
            if (fault := fault_in_delta(choice.delta)) is not None:
                raise ProtocolFailure(fault)
            delta = {"content": choice.text} if choice.text is not None else choice.delta or {}
            for call in delta.get("tool_calls") or ():
                hold(self._add(call))
            text, thoughts = text_of(delta), thoughts_of(delta)
            if (text or thoughts or delta.get("tool_calls")) and self._first is None:
                self._first = self._clock()
            self._finish = choice.finish_reason or self._finish
            heartbeat = not delta and choice.finish_reason is None
            if text or thoughts or heartbeat:
                out += self._line(text, thoughts, [], choice.logprobs, done=False) + b"\n"
        return out

    def _add(self, part: dict[str, Any]) -> int:
        """Add a part of a call to it. Returns its size in memory, in bytes."""
        function = part.get("function") or {}
        call = self._calls.setdefault(part.get("index", 0), {"id": None, "name": None, "pieces": []})
        call["id"], call["name"] = call["id"] or part.get("id"), call["name"] or function.get("name")
        if isinstance(text := function.get("arguments"), str) and text:
            call["pieces"].append(text)
        return _PART_COST + len(text or "")

    def took(self) -> int:
        """Nanoseconds since the request came."""
        return self._clock() - self._began

    def _end(self) -> dict[str, Any]:
        """The fields of the last line. The gateway sees no times but those of the first and the last content."""
        now, used = self._clock(), read_usage(self._usage)
        first = self._first if self._first is not None else self._began
        return {
            "done": True,
            "done_reason": "length" if self._finish == "length" else "stop",
            "total_duration": now - self._began,
            "load_duration": 0,
            "prompt_eval_count": used.prompt,
            "prompt_eval_duration": first - self._began,
            "eval_count": used.completion,
            "eval_duration": max(1, now - first),
        }

    def _line(self, text: str, thoughts: str, calls: list[dict[str, Any]], logprobs: Any, **more: Any) -> bytes:
        said: dict[str, Any] = {"response": text} if self._generates else {"role": "assistant", "content": text}
        if thoughts:
            said["thinking"] = thoughts
        if calls:
            said["tool_calls"] = calls
        listed = logprobs.get("content") if isinstance(logprobs, dict) else None
        body = said if self._generates else {"message": said}
        return _encode({**self._head, **body, **({"logprobs": listed} if listed else {}), **more})


def embeddings_of(body: bytes, model: str, took: int, *, older: bool) -> bytes:
    """The answer of `/api/embed`, which took so many nanoseconds; `older`: of `/api/embeddings`, which has one vector.
    The numbers are copied."""
    try:
        found = _decode_vectors(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolFailure(f"its answer cannot be translated to embeddings of Ollama's: {error}") from None
    vectors = [one.embedding for one in found.data]
    if older:
        return _encode({"embedding": vectors[0] if vectors else []})
    figures = {"total_duration": took, "load_duration": 0, "prompt_eval_count": read_usage(found.usage).prompt}
    return _encode({"model": model, "embeddings": vectors, **figures})


def _whole(held: dict[str, Any]) -> dict[str, Any]:
    """A call that came in parts."""
    return {"id": held["id"], "function": {"name": held["name"], "arguments": "".join(held["pieces"])}}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """A whole call in Ollama's form. Arguments that are no object are kept as text, for the tool to refuse."""
    function = call.get("function") or {}
    text = function.get("arguments") or "{}"
    arguments = arguments_of(text)
    given = arguments if arguments is not None else {"arguments": text}
    id_ = call_id_of(call)
    return {**({"id": id_} if id_ else {}), "function": {"name": function.get("name"), "arguments": given}}
