"""An answer that comes in one piece: is it one, is it whole, does it say anything?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from gateway.routing.request import InferenceRequest
from gateway.streaming import BROKEN_ENDS


class _Choice(msgspec.Struct):
    finish_reason: Any = None
    message: Any = None
    text: Any = None


class _Answer(msgspec.Struct):
    """What is read of an answer; its bytes are passed on, so nothing unknown is lost."""

    choices: list[_Choice] | None = None
    data: Raw = Raw()  # embeddings are large: not looked into (`Raw | None` would take nothing but null)
    model: Any = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Answer).decode


@dataclass(slots=True)
class WholeAnswer:
    """`body` as it came; `model` = the name in it. `failure` = why it is no answer."""

    body: bytes
    model: object = None
    usage: dict[str, Any] | None = None
    empty: bool = False
    failure: str | None = None


def read_whole(body: bytes, request: InferenceRequest) -> WholeAnswer:
    """Judges a 200. A complete answer that says nothing is `empty`."""
    answer = WholeAnswer(body)
    try:
        read = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer.failure = "answered 200 with something that is not the JSON of an answer"
        return answer
    answer.model = read.model
    answer.usage = read.usage if isinstance(read.usage, dict) else None
    if request.endpoint.chunk_object:
        _judge(answer, read)
    elif bytes(memoryview(read.data)[:1]) != b"[":
        answer.failure = _why(read, "data")
    return answer


def _judge(answer: WholeAnswer, read: _Answer) -> None:
    if read.choices is None:
        answer.failure = _why(read, "choices")
        return
    for choice in read.choices:
        if choice.finish_reason in BROKEN_ENDS:
            answer.failure = f"ended with finish_reason {choice.finish_reason}"
        elif choice.finish_reason is None:
            answer.failure = "ended without a finish_reason"
    if not read.choices:
        answer.failure = "answered with no choices"
    answer.empty = all(_says_nothing(choice) for choice in read.choices)


def _why(read: _Answer, missing: str) -> str:
    if read.error is not None:
        error = read.error if isinstance(read.error, str) else msgspec.json.encode(read.error).decode()
        return f"answered 200 with an error: {error[:300]}"
    return f"answered 200 without `{missing}`"


def _says_nothing(choice: _Choice) -> bool:
    """Neither text, nor calls, nor even a thought; and not because the client allowed no more."""
    if choice.finish_reason == "length" or choice.text:
        return False
    message = choice.message if isinstance(choice.message, dict) else {}
    said = ("content", "tool_calls", "refusal", "reasoning", "reasoning_content", "function_call", "audio")
    return not any(message.get(key) for key in said)
