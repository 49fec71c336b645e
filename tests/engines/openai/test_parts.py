"""Servers that lack something: what they are asked, and how their streams become the answer the client asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.endpoints import CHAT, COMPLETIONS, Endpoint
from gateway.domain.engine_traits import TRAITS
from gateway.domain.upstream import Response, TooLarge, UpstreamFailure
from gateway.engines.base import InexpressibleRequest
from gateway.engines.openai.engine import PARTS_MOST, ask, read_stops, split
from gateway.engines.openai.parts import Send, StreamOfParts, WholeOfParts
from tests.engines.scripted import ScriptedResponse, call_of, events_of

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
ESTIMATED = 40  # tokens of the prompt


def event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def said(*texts: str, finish: str | None = "stop", chat: bool = True) -> bytes:
    """A stream with these texts, one event each."""

    def chunk(text: str, end: str | None) -> bytes:
        choice = {"delta": {"content": text} if text else {}} if chat else {"text": text}
        return event({"id": "c", "model": "m", "choices": [{"index": 0, **choice, "finish_reason": end}]})

    ends = [chunk("", finish)] if finish else []
    usage = event({"id": "c", "model": "m", "choices": [], "usage": USAGE})
    return b"".join([*[chunk(text, None) for text in texts], *ends, usage, b"data: [DONE]\n\n"])


def parts_of(
    *streams: Sequence[bytes | UpstreamFailure],
    stops: Sequence[str] = (),
    endpoint: Endpoint = CHAT,
    kind: type[StreamOfParts] = WholeOfParts,
) -> tuple[StreamOfParts, list[ScriptedResponse]]:
    responses = [ScriptedResponse(200, pieces) for pieces in streams]

    def sends(response: ScriptedResponse) -> Send:
        async def send() -> Response:
            return response

        return send

    first, *more = responses
    return kind(endpoint, first, map(sends, more), stops, ESTIMATED), responses


async def whole(*streams: Sequence[bytes | UpstreamFailure], stops: Sequence[str] = (), chat: bool = True) -> Any:
    parts, _ = parts_of(*streams, stops=stops, endpoint=CHAT if chat else COMPLETIONS)
    return msgspec.json.decode(await parts.read_some())


async def stream(*streams: Sequence[bytes | UpstreamFailure], stops: Sequence[str] = ()) -> list[Any]:
    response, body = parts_of(*streams, stops=stops, kind=StreamOfParts)[0], b""
    while data := await response.read_some():
        body += data
    return events_of(body.replace(b":\n\n", b""))


def text_of(events: Sequence[Any]) -> str:
    return "".join(c["delta"].get("content", "") for e in events[:-1] for c in e["choices"])


def finishes_of(events: Sequence[Any]) -> list[str]:
    return [c["finish_reason"] for e in events[:-1] for c in e["choices"] if c["finish_reason"]]


async def test_a_stream_becomes_a_whole_answer() -> None:
    answer = await whole([said("one ", "two")])
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "one two"
    assert answer["usage"] == USAGE


@given(st.lists(st.integers(1, 400), max_size=8))
@settings(max_examples=50)
async def test_the_answer_does_not_depend_on_how_the_stream_arrives(cuts: list[int]) -> None:
    body = said("öne ", "tw", "o th", "ree")
    places = [0, *sorted(cuts), len(body)]
    pieces = [body[begin:end] for begin, end in pairwise(places) if body[begin:end]]
    answer = await whole(pieces, stops=["two"])
    assert answer["choices"][0]["message"]["content"] == "öne "
    assert text_of(await stream(pieces, stops=["two"])) == "öne "


async def test_at_a_stop_string_the_answer_ends_and_the_server_is_left() -> None:
    begun, rest = said("one t", "wo three").split(b"\n\n", 1)
    parts, (response,) = parts_of([begun + b"\n\n", rest, UpstreamFailure("it was read on")], stops=["two"])
    answer = msgspec.json.decode(await parts.read_some())
    assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == ("one ", "stop")
    assert response.released


async def test_what_was_used_before_a_stop_string_is_an_estimate_and_says_so() -> None:
    events = await stream([said("one ", "tw", "o", " three")], stops=["two"])
    assert text_of(events) == "one "
    assert finishes_of(events) == ["stop"]
    assert events[-2]["usage"] == {
        "prompt_tokens": ESTIMATED,
        "completion_tokens": 3,
        "total_tokens": ESTIMATED + 3,
        "estimated": True,
    }


async def test_without_a_stop_string_in_it_the_text_is_whole_and_the_usage_the_servers_own() -> None:
    events = await stream([said("one ", "tw")], stops=["two"])
    assert text_of(events) == "one tw"
    assert events[-2]["usage"] == USAGE


async def test_thoughts_and_arguments_of_calls_are_not_searched() -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":"two"}'}}
    body = b"".join(
        event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        for delta in ({"reasoning": "two"}, {"content": "tw"}, {"tool_calls": [call]})
    )
    answer = await whole([body + said(finish="tool_calls")], stops=["two"])
    message = answer["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("two", "tw")
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x":"two"}'


async def test_several_answers_are_asked_for_one_by_one() -> None:
    answer = await whole([said("a", chat=False)], [said("b", chat=False)], chat=False)
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "a"), (1, "b")]
    assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}


async def test_several_streams_are_one() -> None:
    events = await stream([said("a")], [said("b. c")], stops=["."])
    assert [(c["index"], c["delta"].get("content")) for e in events[:-1] for c in e["choices"]] == [
        (0, "a"),
        (0, None),
        (1, "b"),
    ]
    assert events[-2]["usage"]["estimated"] is True
    assert events.count("[DONE]") == 1


@pytest.mark.parametrize("pieces", [[said("a", finish=None)], [event({"error": "died"})], [UpstreamFailure("reset")]])
async def test_a_stream_that_breaks_is_a_failure(pieces: list[bytes | UpstreamFailure]) -> None:
    with pytest.raises(UpstreamFailure):
        await whole(pieces)
    with pytest.raises(UpstreamFailure):
        await stream(pieces)


async def test_a_part_that_is_refused_is_a_failure() -> None:
    parts, (_, second) = parts_of([said("a")], [said("b")])
    second.status = 500
    with pytest.raises(UpstreamFailure, match="500"):
        await parts.read_some()


async def test_a_whole_answer_is_bounded() -> None:
    with pytest.raises(TooLarge):
        await parts_of([said(*["x" * 100] * 100)])[0].read_all(2000)


# -- what is asked ----------------------------------------------------------------------------------------------------


def fields(**values: Any) -> Any:
    return call_of(values).fields


@pytest.mark.parametrize(("stop", "stops"), [("a", ("a",)), (["a", ""], ("a",)), (None, ()), ("", ()), ([], ())])
def test_stop_strings(stop: Any, stops: tuple[str, ...]) -> None:
    assert read_stops(fields(stop=stop)["stop"]) == stops


@pytest.mark.parametrize("stop", [7, [7], {}, "x" * 1001, ["x"] * 65])
def test_stop_strings_that_cannot_be_looked_for_are_refused(stop: Any) -> None:
    with pytest.raises(InexpressibleRequest, match="stop"):
        read_stops(fields(stop=stop)["stop"])


def test_each_answer_is_a_request_of_its_own_with_its_own_seed() -> None:
    bodies = [msgspec.json.decode(msgspec.json.encode(b)) for b in split(fields(prompt=["a", "b"], n=2, seed=7))]
    assert bodies == [
        {"prompt": "a", "seed": 7},
        {"prompt": "a", "seed": 8},
        {"prompt": "b", "seed": 7},
        {"prompt": "b", "seed": 8},
    ]


def test_a_request_for_one_answer_stays_as_it_is() -> None:
    asked = fields(prompt="a", seed=7)
    assert split(asked) == [asked]


@pytest.mark.parametrize("values", [{"n": PARTS_MOST + 1}, {"n": 65, "prompt": ["a", "b"]}])
def test_too_many_answers_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InexpressibleRequest, match="128"):
        split(fields(**values))


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]], [], ["a", 1]])
def test_prompts_that_are_no_texts_are_refused(prompt: Any) -> None:
    with pytest.raises(InexpressibleRequest, match="text"):
        split(fields(prompt=prompt))


def asked(server: str, **values: Any) -> Any:
    """The first body that this server gets."""
    bodies = ask(call_of(values), TRAITS[server]).bodies
    return msgspec.json.decode(msgspec.json.encode(bodies[0]))


@pytest.mark.parametrize("limit", [0, -1, 1.5, "many", True])
def test_a_limit_that_its_server_would_break_on_is_refused(limit: Any) -> None:
    with pytest.raises(InexpressibleRequest, match="max_tokens"):
        asked("transformers", max_tokens=limit)
    assert asked("lmstudio", max_tokens=limit)["max_tokens"] == limit  # some mean something by it
    assert asked("transformers", max_tokens=None, max_completion_tokens=5)["max_completion_tokens"] == 5


def test_a_bias_of_whole_numbers_is_sent_as_floats() -> None:
    bias = ask(call_of({"logit_bias": {"5": 1, "6": 0.5, "7": 10**400}}), TRAITS["transformers"]).bodies[0][
        "logit_bias"
    ]
    assert bytes(bias).startswith(b'{"5":1.0,"6":0.5,"7":1000')
    assert asked("mlx", logit_bias={"5": 1})["logit_bias"] == {"5": 1}


def test_a_server_that_lacks_one_thing_gets_everything_else_as_it_came() -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}
    values = {"stop": "x", "stream": True, "n": 1, **tools}
    assert asked("lmstudio", **values) == {"stop": "x", "stream": True, **tools}
    assert asked("mlx", **values) == {"stream": True}
