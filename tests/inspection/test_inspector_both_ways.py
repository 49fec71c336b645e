"""The same answer is judged and mended the same, streamed or in one piece, however the stream is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.endpoints import CHAT, COMPLETIONS, Endpoint
from gateway.domain.request import InferenceRequest, parse
from gateway.inspection.inspector import UNFINISHED, Inspector
from gateway.inspection.policy import InspectionPolicy, LazyTools, formats_for
from gateway.inspection.reasoning import THINK, Thoughts
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import WholeAnswer, read_whole

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
FORMATS = formats_for("Qwen/Qwen3-8B", "hermes")
LIMIT = 30  # tokens
FRAGMENTS = st.sampled_from(
    [
        "<think>", "hm", "</think>", "\n", "\n\n", "Hello, ", "wörld", "`", "```\n", '"', "\\", "a < b", "!!!!!",
        "-" * 9, "?" * 20,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        '<tool_call>{"name": "rm_rf", "arguments": {}}</tool_call>', "<tool_call>", "</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>", "<function=now>", "😀",
    ]
)  # fmt: skip
texts = st.lists(FRAGMENTS, max_size=10).map("".join)
cuts = st.lists(st.integers(0, 400), max_size=30)  # fewer than make one token again and again of a text


@dataclass
class Answer:
    """What a backend says in one choice. `calls`: (name, arguments as text)."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    refusal: str = ""
    finish: str | None = "stop"


calls = st.lists(
    st.tuples(
        st.sampled_from(["get_weather", "now", "rm_rf"]), st.sampled_from(['{"city": "Oslo"}', "{}", '{"ci', "[]"])
    ),
    max_size=2,
)


def of_one_kind(answer: Answer) -> Answer:
    """With calls in the text or calls of their own: in which order both come depends on when the former are found."""
    return replace(answer, calls=[]) if "<tool_call>" in answer.content else answer


answers = st.builds(
    Answer,
    content=texts,
    reasoning=st.sampled_from(["", "", "hm", "Let me see.\n", "!!!!!!!", "?" * 25]),
    calls=calls | st.just([]),
    refusal=st.sampled_from(["", "", "", "no"]),
    finish=st.sampled_from(["stop", "stop", "length", "tool_calls", "repetition", "abort", "error"]),
).map(of_one_kind)
usages = st.none() | st.sampled_from([1, 20, LIMIT, 400]).map(lambda count: {"completion_tokens": count})


def tools() -> LazyTools:
    return LazyTools(json.dumps(TOOLS).encode())


POLICIES: dict[str, InspectionPolicy | None] = {
    "none": None,
    "tools": InspectionPolicy(tools(), FORMATS, THINK),
    "required": InspectionPolicy(tools(), FORMATS, THINK, call="required"),
    "required, held": InspectionPolicy(tools(), FORMATS, THINK, call="required", hold=True),
    "named, held": InspectionPolicy(tools(), FORMATS, THINK, call="named", name="now", hold=True),
    "thoughts without an opener": InspectionPolicy(thoughts=THINK.with_opener_implied()),
    "thoughts under both names": InspectionPolicy(thoughts=THINK, reasoning_field="both"),
    "no thoughts": InspectionPolicy(thoughts=THINK, reasoning_field="none"),
}


def asked(endpoint: Endpoint = CHAT, choices: int = 1, **more: Any) -> InferenceRequest:
    """A request of a client that wants to see the usage."""
    body = {"model": "alias", "stream": True, "messages": [], "tools": TOOLS, "max_tokens": LIMIT, "n": choices}
    request = parse(endpoint, json.dumps({**body, "prompt": "x", **more}).encode())
    request.wants_usage = True
    return request


# -- sent in one piece ------------------------------------------------------------------------------------------------


def message_of(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or None}
    if answer.reasoning:
        message["reasoning"] = answer.reasoning
    if answer.refusal:
        message["refusal"] = answer.refusal
    if answer.calls:
        message["tool_calls"] = [
            {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(answer.calls)
        ]
    return message


def in_one_piece(
    said: list[Answer], usage: Any, policy: InspectionPolicy | None, thoughts: Thoughts | None
) -> tuple[WholeAnswer, list[Joined]]:
    choices = [{"index": i, "message": message_of(a), "finish_reason": a.finish} for i, a in enumerate(said)]
    body = json.dumps({"model": "served", "choices": choices, "usage": usage}).encode()
    answer = read_whole(body, asked(choices=len(said)), policy, thoughts)
    joined = [Joined() for _ in said]
    for one, choice in zip(joined, json.loads(answer.body)["choices"], strict=True):
        one.add(choice["message"], choice["finish_reason"])
    return answer, joined


# -- streamed ---------------------------------------------------------------------------------------------------------


def event(delta: dict[str, Any], finish: str | None = None, *, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "served", "choices": [choice]}
    return b"data: " + json.dumps({**head, **more}, separators=(",", ":")).encode() + b"\n\n"


def pieces(text: str, cut_at: list[int]) -> list[str]:
    places = [0, *sorted(c for c in cut_at if c < len(text)), len(text)]
    return [text[a:b] for a, b in pairwise(places) if text[a:b]]


def events_of(answer: Answer, cut_at: list[int], index: int, usage: Any, ends_apart: bool) -> Iterator[bytes]:
    """The answer in deltas. `usage`: what stands beside its finish_reason. `ends_apart`: that is in an event of its
    own, and so is each kind of output; else an event has all that fits into it, as those of engines that draft."""
    *deltas, last = deltas_of(answer, cut_at) if ends_apart else merged(deltas_of(answer, cut_at))
    for delta in [*deltas, last] if ends_apart else deltas:
        yield event(delta, index=index)
    yield event({} if ends_apart else last, answer.finish, index=index, usage=usage)


def merged(deltas: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of different kinds in one delta."""
    found: list[dict[str, Any]] = [{}]
    for delta in deltas:
        if delta.keys().isdisjoint(found[-1]):
            found[-1] |= delta
        else:
            found.append(dict(delta))
    return found


def deltas_of(answer: Answer, cut_at: list[int]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for part in pieces(answer.reasoning, cut_at):
        yield {"reasoning": part}
    if answer.refusal:
        yield {"refusal": answer.refusal}
    for part in pieces(answer.content, cut_at):
        yield {"content": part}
    for i, (name, arguments) in enumerate(answer.calls):
        head = {"index": i, "id": f"c{i}", "type": "function", "function": {"name": name, "arguments": ""}}
        yield {"tool_calls": [head]}
        for part in pieces(arguments, cut_at):
            yield {"tool_calls": [{"index": i, "function": {"arguments": part}}]}


def streamed(
    said: list[Answer],
    cut_at: list[int],
    usage: Any,
    late: bool,
    policy: InspectionPolicy | None,
    thoughts: Thoughts | None,
    ends_apart: bool,
) -> tuple[StreamTrack, list[Joined]]:
    """`late`: the usage has an event of its own, behind all others."""
    track = StreamTrack(asked(choices=len(said)), ReplyIdentity(), policy, thoughts)
    events = [e for i, a in enumerate(said) for e in events_of(a, cut_at, i, None if late else usage, ends_apart)]
    out = [track.feed([one]) for one in taken(track, [*events, event({}, choices=[], usage=usage)])]
    track.conclude()
    joined = [Joined() for _ in said]
    for choice in choices_in(b"".join(out)):
        joined[choice["index"]].add(choice["delta"], choice["finish_reason"])
    if track.empty:  # and so asked of another backend, whose answer follows
        assert [one.finish for one in joined] == [None] * len(said)
    for choice in choices_in(track.release_held()):
        joined[choice["index"]].add(choice["delta"], choice["finish_reason"])
    return track, joined


def choices_in(events: bytes) -> Iterator[dict[str, Any]]:
    for one in events.split(b"\n\n")[:-1]:
        yield from msgspec.json.decode(one.removeprefix(b"data: "))["choices"]


def taken(track: StreamTrack, events: list[bytes]) -> Iterator[bytes]:
    """The events up to where the request path reads no further."""
    for one in events:
        if track.failure is not None or track.disobeyed:
            return
        yield one


@dataclass
class Joined:
    """One choice as the client gets it, its deltas joined."""

    content: str = ""
    thoughts: dict[str, str] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)
    refusal: str = ""
    finish: object = None

    def add(self, part: dict[str, Any], finish: object) -> None:
        self.content += part.get("content") or ""
        self.refusal += part.get("refusal") or ""
        for name in ("reasoning", "reasoning_content"):
            if part.get(name):
                self.thoughts[name] = self.thoughts.get(name, "") + part[name]
        for i, call in enumerate(part.get("tool_calls") or ()):
            index = call.get("index", i)
            if index == len(self.calls):
                self.calls.append(["", ""])
            self.calls[index][0] += call["function"].get("name") or ""
            self.calls[index][1] += call["function"].get("arguments") or ""
        self.finish = finish or self.finish


# -- the same ---------------------------------------------------------------------------------------------------------


def verdict(answer: Inspector) -> dict[str, Any]:
    names = ("failure", "empty", "disobeyed", "stray_close", "never_closed", "violations", "mended")
    return {name: getattr(answer, name) for name in names}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
@given(
    answer=answers,
    cut_at=cuts,
    usage=usages,
    late=st.booleans(),
    thoughts=st.sampled_from([None, THINK]),
    ends_apart=st.booleans(),
)
def test_an_answer_is_judged_and_mended_the_same_both_ways(
    policy: InspectionPolicy | None,
    answer: Answer,
    cut_at: list[int],
    usage: Any,
    late: bool,
    thoughts: Thoughts | None,
    ends_apart: bool,
) -> None:
    same_both_ways([answer], cut_at, usage, late, policy, thoughts, ends_apart)


@given(
    said=st.lists(answers, min_size=2, max_size=3),
    cut_at=cuts,
    usage=usages,
    policy=st.sampled_from([*POLICIES.values()]),
    ends_apart=st.booleans(),
)
def test_each_of_several_choices_is_judged_the_same_both_ways(
    said: list[Answer], cut_at: list[int], usage: Any, policy: InspectionPolicy | None, ends_apart: bool
) -> None:
    same_both_ways(said, cut_at, usage, False, policy, THINK, ends_apart)


@given(text=texts, cut_at=cuts, finish=st.sampled_from(["stop", "length", "repetition", "abort"]))
def test_a_completion_is_judged_the_same_both_ways(text: str, cut_at: list[int], finish: str) -> None:
    request = asked(COMPLETIONS)
    head: dict[str, Any] = {"model": "served"}
    end = {"index": 0, "finish_reason": finish, "logprobs": None}
    whole = read_whole(json.dumps({**head, "choices": [{**end, "text": text}]}).encode(), request)
    track = StreamTrack(request, ReplyIdentity())
    parts = [{"index": 0, "text": part, "finish_reason": None} for part in pieces(text, cut_at)]
    events = [
        b"data: " + json.dumps({**head, "choices": [one]}).encode() + b"\n\n" for one in [*parts, {**end, "text": ""}]
    ]
    out = b"".join([track.feed([one]) for one in events])
    track.conclude()
    assert track.failure == whole.failure
    if whole.failure is None:
        assert verdict(track) == verdict(whole)
        sent = [msgspec.json.decode(e[6:])["choices"][0] for e in (out + track.release_held()).split(b"\n\n")[:-1]]
        [choice] = json.loads(whole.body)["choices"]
        assert "".join(one["text"] for one in sent) == choice["text"] == text
        assert sent[-1]["finish_reason"] == choice["finish_reason"] == ("stop" if finish == "repetition" else finish)


def same_both_ways(
    said: list[Answer],
    cut_at: list[int],
    usage: Any,
    late: bool,
    policy: InspectionPolicy | None,
    thoughts: Thoughts | None,
    ends_apart: bool,
) -> None:
    whole, in_one = in_one_piece(said, usage, policy, thoughts)
    stream, in_parts = streamed(said, cut_at, usage, late, policy, thoughts, ends_apart)
    if stream.disobeyed and not stream.whole:  # left at the first call, which is a wrong one
        assert whole.disobeyed or whole.failure is not None
        return
    if stream.failure == UNFINISHED and "length" in whole.finished.values():
        return  # the usage, which shows that a limit cut the call off, comes behind the end of a stream
    assert stream.failure == whole.failure
    if whole.failure is not None:
        return
    assert stream.whole
    if whole.disobeyed and not stream.disobeyed:  # content was sent: nobody else can be asked any more
        assert stream.content
        stream.disobeyed = True
    if whole.stray_close or stream.stray_close:
        return  # a stream sees of the tag's line what comes in one event, and cannot take back what has been sent
    assert verdict(stream) == verdict(whole)
    for one, other in zip(in_parts, in_one, strict=True):
        if policy is None:  # white space before thoughts has been sent before they begin
            one.content, other.content = one.content.lstrip(), other.content.lstrip()
        if late and usage is not None and usage["completion_tokens"] == LIMIT:
            one.finish = other.finish  # that a call was cut off is known too late
        assert one == other
