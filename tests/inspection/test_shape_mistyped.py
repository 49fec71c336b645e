"""Whatever a backend says wrongly is a failure of that backend: nothing of it raises in the gateway's own readers. (The
same over sockets, with a second backend that answers: tests/proxy/test_attempt_mistyped.py.)"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from gateway.apps.dialects.anthropic.answer import envelope, to_message
from gateway.apps.dialects.anthropic.stream import MessageStream
from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, Endpoint
from gateway.domain.request import InferenceRequest, parse
from gateway.domain.tokens import COUNT_MOST, read_usage
from gateway.domain.upstream import ProtocolFailure
from gateway.health.checks.reply import CheckReply, read_stream
from gateway.health.checks.reply import read_whole as read_checked
from gateway.inspection import rewrite
from gateway.inspection.error_replies import judge
from gateway.inspection.heuristics import empty_kind
from gateway.inspection.policy import InspectionPolicy, LazyTools, formats_for
from gateway.inspection.reasoning import THINK
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.stream_track import PREAMBLE_MOST, StreamTrack
from gateway.inspection.whole import WholeAnswer, read_whole
from gateway.transport.sse import Framer
from tests.mutations import dumped, mutated, mutated_one_of

TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"city": "Oslo"}'}}
USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 30,
    "total_tokens": 50,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
HEAD = {"id": "up-1", "object": "chat.completion", "created": 2, "model": "served"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "assistant", "content": "hello", "reasoning": "hm", "refusal": None},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
    {"role": "assistant", "content": '<think>hm</think><tool_call>{"name": "now", "arguments": {}}</tool_call>'},
    {"role": "assistant", "content": [{"type": "text", "text": "hello"}], "function_call": {"name": "now"}},
]
WHOLE: list[dict[str, Any]] = [
    {
        **HEAD,
        "choices": [{"index": 0, "message": message, "logprobs": {"content": []}, "finish_reason": finish}],
        "usage": USAGE,
    }
    for message, finish in zip(MESSAGES, ("stop", "tool_calls", "repetition", "length"), strict=True)
]
COMPLETION = {**HEAD, "choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}], "usage": USAGE}
EMBEDDED = {"object": "list", "model": "served", "data": [{"index": 0, "embedding": [0.5, 1]}], "usage": USAGE}


def expectations() -> list[InspectionPolicy | None]:
    tools = LazyTools(dumped(TOOLS))
    armed = InspectionPolicy(tools, formats_for("Qwen/Qwen3-8B", "hermes"), THINK)
    return [
        None,
        armed,
        InspectionPolicy(reasoning_field="both"),
        InspectionPolicy(tools, armed.formats, THINK.with_opener_implied(), call="named", name="now", hold=True),
    ]


EXPECTED = expectations()


def asked(endpoint: Endpoint = CHAT, **more: Any) -> InferenceRequest:
    body = {"model": "alias", "messages": [], "tools": TOOLS, "max_tokens": 30, **more}
    return parse(endpoint, json.dumps(body).encode())


# -- in one piece -----------------------------------------------------------------------------------------------------


def follow(answer: WholeAnswer) -> bytes:
    """What the request path does with an answer that it delivers. Returns the client's bytes."""
    empty_kind(answer.usage)
    assert all(0 <= count <= COUNT_MOST for count in astuple(read_usage(answer.usage)))
    return rewrite.whole(answer.body, answer.model, "alias")


@given(st.sampled_from(WHOLE).flatmap(mutated), st.sampled_from(EXPECTED), st.sampled_from([None, THINK]))
def test_no_whole_answer_raises_in_any_reader(body: bytes, expected: InspectionPolicy | None, thoughts: Any) -> None:
    answer = read_whole(body, asked(), expected, thoughts)
    read_checked(CheckReply(200, {}, body))
    if answer.failure is None:
        message = json.loads(to_message(follow(answer), "msg_1"))
        assert all(type(count) is int for count in message["usage"].values())
        assert all(isinstance(block["type"], str) for block in message["content"])
        assert all(isinstance(b["id"], str | None) for b in message["content"] if b["type"] == "tool_use")


@given(mutated(COMPLETION), mutated(EMBEDDED))
def test_no_whole_answer_of_another_endpoint_raises(completion: bytes, embedded: bytes) -> None:
    for endpoint, body in ((COMPLETIONS, completion), (EMBEDDINGS, embedded)):
        answer = read_whole(body, asked(endpoint, prompt="x", input="x"))
        if answer.failure is None:
            follow(answer)


@given(mutated({"error": {"message": "maximum context length is 9", "type": "x", "param": "y", "code": 400}}))
def test_no_error_raises_in_its_judge(body: bytes) -> None:
    for status in (302, 400, 403, 404, 422, 429, 500, 503, 999):
        headers = {"content-type": "application/json", "retry-after": body[:99].decode("latin-1")}
        verdict = judge(status, headers, body, "chat")
        assert isinstance(verdict.message, str)
    try:
        told = envelope(None, body, "r")
    except (ValueError, RecursionError):  # it is only ever our own, or an event that was read
        return
    assert json.loads(told)["error"]["type"]


# -- streams ----------------------------------------------------------------------------------------------------------


def chunk(delta: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice], **more}


def said(text: str) -> dict[str, Any]:
    return chunk({"content": text})


def part(**more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, **more}]}


STREAMS: list[list[dict[str, Any]]] = [
    [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "hm"}),
        *map(said, ("hel", "lo ", "you")),
        chunk({}, "stop"),
        {**HEAD, "choices": [], "usage": USAGE},
    ],
    [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "\n"}),
        chunk(part(id="call_1", type="function", function={"name": "now", "arguments": ""})),
        chunk(part(function={"arguments": "{}"})),
        chunk({}, "tool_calls", usage=USAGE),
    ],
    [
        chunk({"role": "assistant"}),
        *(
            chunk({"content": text})
            for text in ('<tool_call>{"name": "now", ', '"arguments": {}}', "</tool_call>", "x")
        ),
        chunk({}, "stop"),
    ],
    [chunk({"content": "a"}), chunk({"content": "b"}), {"error": {"message": "no", "code": 500}}],
]


def events(data: Sequence[bytes]) -> list[bytes]:
    return [b"data: " + one + b"\n\n" for one in (*data, b"[DONE]")]


@given(
    st.sampled_from(STREAMS).flatmap(mutated_one_of),
    st.sampled_from(EXPECTED),
    st.sampled_from([CHAT, COMPLETIONS]),
    st.integers(1, 2),
    st.booleans(),
)
def test_no_stream_raises_in_any_reader(
    data: list[bytes], expected: InspectionPolicy | None, endpoint: Endpoint, choices: int, together: bool
) -> None:
    """Both attempts of one reply: the second goes on under what the first has told."""
    request = asked(endpoint, prompt="x", stream=True, n=choices)
    identity, message = ReplyIdentity(), MessageStream("r")
    sent = [event for one in events(data) for event in Framer().feed(one)]
    read_stream(CheckReply(200, {"content-type": "text/event-stream"}, b"".join(sent)))
    for _ in range(2):
        track = StreamTrack(request, identity, expected if endpoint is CHAT else None, THINK)
        out = [track.feed(batch) for batch in ([sent] if together else [[event] for event in sent])]
        if track.whole:
            track.conclude()
        out.append(track.release_held())
        empty_kind(track.usage)
        if endpoint is CHAT:
            translate(message, out)


def translate(message: MessageStream, out: Sequence[bytes]) -> None:
    framer = Framer()
    try:
        for piece in out:
            message.translate(framer.feed(piece))
    except ProtocolFailure:
        return  # what the request path takes for a failure of the backend


@given(st.sampled_from(STREAMS).flatmap(mutated_one_of))
def test_no_stream_raises_in_the_translation_alone(data: list[bytes]) -> None:
    """It gets the bytes of events that were passed on unread, too."""
    translate(MessageStream("r"), events(data))


MISTAKES: dict[str, Any] = {
    "calls as a text": {"tool_calls": "x"},
    "calls as an object": {"tool_calls": {}},
    "a call that is null": {"tool_calls": [None]},
    "a call that is a list": {"tool_calls": [[]]},
    "content as a number": {"content": 1.5},
    "content as an object": {"content": {}},
    "content as a list of nothing": {"content": [None]},
    "thoughts as a list": {"reasoning": ["hm"], "content": "x"},
    "a role as a number": {"role": 5, "content": "x"},
    "a function that is null": part(function=None),
    "arguments as a list": part(function={"name": "now", "arguments": []}),
    "arguments as a number": part(function={"name": "now", "arguments": 5}),
    "a name as a number": part(function={"name": 5, "arguments": "{}"}),
    "an id as a list": part(id=[], function={"name": "now", "arguments": "{}"}),
    "a list": [],
    "a text": "x",
    "a number": 5,
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("expected", EXPECTED, ids=["unchecked", "checked", "renamed", "held"])
def test_a_mistake_is_a_failure_of_the_answer(name: str, expected: InspectionPolicy | None) -> None:
    mistake = MISTAKES[name]
    choice = {"index": 0, "message": mistake, "finish_reason": "stop"}
    assert (read_whole(dumped({**HEAD, "choices": [choice]}), asked(), expected).failure or "").startswith("sent a ")
    track = StreamTrack(asked(stream=True), ReplyIdentity(), expected)
    assert track.feed(events([dumped(chunk(mistake))])[:1]) == b""
    assert (track.failure or "").startswith("sent a ")
    assert not track.content


@pytest.mark.parametrize(
    "odd",
    [
        {"usage": []},
        {"usage": "x"},
        {"id": 5},
        {"id": {}, "created": []},
        {"created": 10**400},
        {"model": None},
        {"model": 5},
        {"logprobs": "x"},
    ],
    ids=repr,
)
def test_an_oddity_that_no_client_stumbles_over_is_passed_on(odd: dict[str, Any]) -> None:
    body = {**WHOLE[0], **odd}
    answer = read_whole(dumped(body), asked())
    assert (answer.failure, answer.body) == (None, dumped(body))
    follow(answer)
    track = StreamTrack(asked(stream=True), ReplyIdentity())
    out = track.feed(events([dumped({**one, **odd}) for one in STREAMS[0]]))
    assert track.whole
    assert out.count(b"data: ") == 6


def test_a_later_attempt_goes_on_after_one_whose_id_was_no_text() -> None:
    identity = ReplyIdentity()
    for odd in ({"id": {"x": 1}, "created": 10**400}, {}):
        track = StreamTrack(asked(stream=True), identity)
        out = track.feed(events([dumped({**chunk({"reasoning": "hm"}), **odd})]))
        assert track.failure is None
    assert b'"id":"up-1","object":"chat.completion.chunk","created":2,"model":"alias"' in out


def test_a_stream_that_only_ever_says_nothing_is_no_answer() -> None:
    track = StreamTrack(asked(stream=True), ReplyIdentity())
    silent = events([dumped(chunk({}))])[:1]
    for _ in range(100_000):
        track.feed(silent)
        if track.failure is not None:
            break
    assert "before it said anything" in (track.failure or "")
    assert sum(map(len, track.held)) <= PREAMBLE_MOST + len(silent[0])
