"""The raw reply to a check, and the answer parsed from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gateway.domain.tokens import read_usage
from gateway.domain.upstream import ProtocolFailure
from gateway.health.checks.profile import Profile
from gateway.inspection.mender import Call, Mender, OfferedTools, Reasoning, Segment, Text
from gateway.inspection.reasoning import Thoughts
from gateway.inspection.shape import brief
from gateway.transport.sse import BROKEN_ENDS, DONE, Framer, data_of, read_chunk

SHOWN = 90  # characters of a text that are quoted in an observation
_decode = msgspec.json.Decoder(Any).decode


@dataclass(frozen=True, slots=True)
class CheckReply:
    """`body`: the whole body, or all events of a stream. `failure`: why there is no complete reply. The causes that
    callers distinguish: `gone` = no connection could be made; `silent` = the time ran out; `ours` = the gateway itself
    failed, or lacked files or memory."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    failure: str | None = None
    gone: bool = False
    silent: bool = False
    ours: bool = False


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The first choice of an answer. `calls`: (name, arguments as text) in order. `tokens` (completion) and
    `prompt_tokens`: as reported, 0 = not reported. `done`: False = a stream that ended without [DONE]."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str | None = None
    tokens: int = 0
    prompt_tokens: int = 0
    done: bool = True


def short(text: str) -> str:
    """The text on one line, in quotes, cut to `SHOWN`."""
    line = " ".join(text.split())
    return repr(line if len(line) <= SHOWN else line[:SHOWN] + "...")


# -- reading ----------------------------------------------------------------------------------------------------------


def read_whole(reply: CheckReply) -> ParsedAnswer | str:
    """Parse the answer of a 200 that is not streamed; a `str` = why there is no answer in it."""
    try:
        body = _decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return f"answered 200 with something that is not JSON: {short(reply.body[:500].decode(errors='replace'))}"
    if not isinstance(body, dict):
        return "answered 200 with JSON that is not an object"
    if body.get("error"):
        return f"answered 200 with an error: {short(brief(body['error']))}"
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return "answered 200 without `choices`"
    finish = choices[0].get("finish_reason")
    if finish in BROKEN_ENDS:
        return f"ended with finish_reason {finish}"
    message = choices[0].get("message")
    message = message if isinstance(message, dict) else {}
    calls = _CallParts()
    calls.add(message.get("tool_calls"))
    return ParsedAnswer(
        _text(message, "content"), _thoughts(message), calls.all(), _finish_reason(finish), *_usage(body.get("usage"))
    )


def read_stream(reply: CheckReply) -> ParsedAnswer | str:
    """Parse the answer of a 200 that is streamed; a `str` = why there is no answer in it."""
    kind = reply.headers.get("content-type", "")
    if "text/event-stream" not in kind:
        return f"answered a stream with {kind or 'no content-type'}: {short(reply.body[:500].decode(errors='replace'))}"
    framer = Framer()
    try:
        events = [*framer.feed(reply.body), *framer.finish()]
    except ProtocolFailure as error:
        return f"sent {error}"
    return _read_events(events)


def _read_events(events: Iterable[bytes]) -> ParsedAnswer | str:
    content, reasoning, calls = "", "", _CallParts()
    finish: Any = None
    usage: Any = None
    done = False
    for event in events:
        data = data_of(event)
        if data is None:
            continue
        if data == DONE:
            done = True
            continue
        chunk = read_chunk(data)
        if chunk is None:
            return f"sent an event that is not JSON: {short(data[:500].decode(errors='replace'))}"
        if chunk.error is not None:
            return f"sent an error event: {short(brief(chunk.error))}"
        usage = chunk.usage or usage
        for choice in chunk.choices or ():
            delta = choice.delta if isinstance(choice.delta, dict) else {}
            content += _text(delta, "content")
            reasoning += _thoughts(delta)
            calls.add(delta.get("tool_calls"))
            finish = choice.finish_reason or finish
    if finish in BROKEN_ENDS:
        return f"the stream ended with finish_reason {finish}"
    if finish is None:
        return "the stream ended without a finish_reason"
    return ParsedAnswer(content, reasoning, calls.all(), _finish_reason(finish), *_usage(usage), done)


class _CallParts:
    """Collects the calls of a message, or joins them by index from the fragments of a stream."""

    def __init__(self) -> None:
        self._parts: dict[int, list[str]] = {}

    def add(self, calls: Any) -> None:
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                continue
            index = call.get("index")
            parts = self._parts.setdefault(index if isinstance(index, int) else position, ["", ""])
            parts[0] += _text(function, "name")
            parts[1] += _text(function, "arguments")

    def all(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, arguments) for _, (name, arguments) in sorted(self._parts.items()))


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def _thoughts(message: Mapping[str, Any]) -> str:
    """The thoughts in a message or delta: vLLM renamed the field `reasoning_content` to `reasoning`."""
    return _text(message, "reasoning") or _text(message, "reasoning_content")


def _finish_reason(finish: Any) -> str | None:
    return finish if isinstance(finish, str) else None


def _usage(usage: Any) -> tuple[int, int]:
    used = read_usage(usage)
    return used.completion, used.prompt


# -- mending ----------------------------------------------------------------------------------------------------------


def mended(answer: ParsedAnswer, profile: Profile, tools: Iterable[Any] = ()) -> ParsedAnswer:
    """The answer as a client of the gateway receives it: calls and thoughts moved from the content to their fields, and
    the stream closed with [DONE]."""
    segments = _segments(answer.content, profile, profile.thoughts, tools)
    thoughts = profile.thoughts
    has_reasoning = any(isinstance(segment, Reasoning) for segment in segments)
    if thoughts is not None and thoughts.closer in answer.content and not has_reasoning:
        segments = _segments(answer.content, profile, thoughts.with_opener_implied(), tools)
    calls = tuple((segment.name, segment.arguments) for segment in segments if isinstance(segment, Call))
    return replace(
        answer,
        content="".join(segment.text for segment in segments if isinstance(segment, Text)),
        reasoning=answer.reasoning + "".join(segment.text for segment in segments if isinstance(segment, Reasoning)),
        calls=answer.calls + calls,
        done=True,
    )


def _segments(content: str, profile: Profile, thoughts: Thoughts | None, tools: Iterable[Any]) -> list[Segment]:
    mender = Mender(profile.formats, OfferedTools(tools), thoughts)
    return [*mender.feed(content), *mender.finish()]
