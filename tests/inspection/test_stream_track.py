"""One attempt's stream as a pure function: which bytes may go out, when, and whether the stream was whole."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.endpoints import CHAT, COMPLETIONS
from gateway.domain.request import InferenceRequest
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.stream_track import StreamTrack
from gateway.transport.sse import Framer, data_of

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
STREAMS = (
    "chat_stream",
    "chat_stream_length",
    "chat_stream_usage",
    "chat_stream_usage_cont",
    "chat_n2_stream",
    "completions_stream",
    "reason_stream",
    "reason_thinking_off_stream",
    "tool_auto_scripted_stream",
    "tool_auto_parallel_scripted_stream",
)
DONE = b"data: [DONE]\n\n"


def captured(name: str) -> bytes:
    """The body of a stream as vLLM 0.32 sent it."""
    body = (CAPTURES / f"{name}.txt").read_bytes().partition(b"### ---- response")[2]
    events = body.replace(b"\r\n", b"\n").partition(b"\n\n")[2]
    return events[: events.index(DONE) + len(DONE)]


def asked(name: str = "", *, choices: int = 1, usage: bool = True) -> InferenceRequest:
    choices = 2 if "n2" in name else choices
    endpoint = COMPLETIONS if name.startswith("completions") else CHAT
    return InferenceRequest(endpoint, {}, "alias", stream=True, choices=choices, wants_usage=usage)


def track_of(request: InferenceRequest | None = None, identity: ReplyIdentity | None = None) -> StreamTrack:
    return StreamTrack(request or asked(), identity or ReplyIdentity())


def fed(track: StreamTrack, data: bytes, cuts: list[int]) -> bytes:
    """What goes out when `data` arrives in the pieces that `cuts` makes."""
    framer = Framer()
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    out = [track.feed(framer.feed(data[a:b])) for a, b in pairwise(places)]
    return b"".join([*out, track.feed(framer.finish())])


def event(delta: object, finish: str | None = None, *, index: int = 0, **more: object) -> bytes:
    head = {"id": "up-1", "object": "chat.completion.chunk", "created": 2, "model": "served"}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return dump({**head, "choices": [choice], **more})


def dump(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def decoded(data: bytes) -> list[Any]:
    return [json.loads(data_of(e) or b"null") for e in Framer().feed(data)]


ROLE = event({"role": "assistant", "content": ""})
HELLO = event({"content": "hello"})
THOUGHT = event({"reasoning": "hm"})
STOP = event({}, "stop")
cuts = st.lists(st.integers(0, 100_000), max_size=30)


# -- the same bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=15)
@given(cuts=cuts)
def test_a_captured_stream_goes_out_byte_for_byte_but_for_the_model(name: str, cuts: list[int]) -> None:
    data = captured(name)
    track = track_of(asked(name))
    expected = data.removesuffix(DONE).replace(b'"model":"tiny"', b'"model":"alias"')
    assert fed(track, data, cuts) == expected
    assert (track.whole, track.done, track.failure) == (True, True, None)


@pytest.mark.parametrize("name", STREAMS)
def test_what_goes_out_never_waits_once_something_was_said(name: str) -> None:
    """One event in, one event out, from the first that says or thinks something."""
    track = track_of(asked(name))
    saying = False
    for one in Framer().feed(captured(name)):
        out = track.feed([one])
        saying = saying or track.content or track.reasoning
        assert bool(out) == (saying and one != DONE)


tricky = st.text(max_size=20) | st.sampled_from(
    [
        '"model":"served"',
        '","model":"served',
        '"id":"up-1","created":2',
        '"finish_reason":"stop"',
        '"usage":{}',
        '"error"',
        "data: [DONE]\n\n",
        "\r\n\r\ndata: x",
        "\\",
        "\u2028",
    ]
)
deltas = st.one_of(
    st.builds(lambda t: {"content": t}, tricky),
    st.builds(lambda t: {"reasoning": t}, tricky),
    st.builds(lambda t: {"tool_calls": [{"index": 0, "id": "up-1", "function": {"arguments": t}}]}, tricky),
)


@given(st.lists(deltas, min_size=1, max_size=8), st.sampled_from(["stop", "length", "tool_calls"]), cuts, st.booleans())
def test_rewriting_never_touches_what_the_model_says(
    said: list[dict[str, Any]], finish: str, cuts: list[int], second: bool
) -> None:
    identity = ReplyIdentity()
    if second:  # a later attempt, so that id and created are rewritten too
        identity.fix("first", 1)
    data = b"".join([ROLE, *map(event, said), event({}, finish), DONE])
    track = track_of(identity=identity)
    out = decoded(fed(track, data, cuts))
    if not (track.content or track.reasoning):
        assert out == []
        return
    assert track.whole
    mine = {"model": "alias"} | ({"id": "first", "created": 1} if second else {"id": "up-1", "created": 2})
    assert out == [{**chunk, **mine} for chunk in decoded(data.removesuffix(DONE))]


@given(st.binary(max_size=200), cuts)
def test_no_bytes_are_a_reason_to_fail_inside_the_gateway(noise: bytes, cuts: list[int]) -> None:
    track = track_of()
    fed(track, ROLE + noise + b"\n\n" + HELLO + noise, cuts)


odd_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "index", "content", "finish_reason", "usage", "error", "id", "model"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(odd_json, max_size=4))
def test_no_json_is_a_reason_to_fail_inside_the_gateway(values: list[Any]) -> None:
    track = track_of()
    track.feed([ROLE, *map(dump, values), HELLO])


# -- what is held, what commits ---------------------------------------------------------------------------------------


def test_the_preamble_is_held_until_something_is_said() -> None:
    track = track_of()
    assert track.feed([b": keep-alive\n\n", ROLE]) == b""
    assert not track.content
    assert track.feed([HELLO]) == (ROLE + HELLO).replace(b"served", b"alias")
    assert track.content


def test_comments_are_no_progress_and_everything_else_is() -> None:
    track = track_of()
    track.feed([b": keep-alive\n\n"])
    assert not track.progress
    for one in (ROLE, THOUGHT, HELLO, HELLO):
        track.feed([one])
        assert track.progress
    track.feed([b": keep-alive\n\n"])
    assert not track.progress


def test_reasoning_goes_out_and_is_not_content() -> None:
    track = track_of()
    assert track.feed([ROLE, THOUGHT]) == (ROLE + THOUGHT).replace(b"served", b"alias")
    assert (track.reasoning, track.content) == (True, False)
    track.feed([HELLO])
    assert track.content


def test_a_later_attempt_goes_on_under_the_first_ones_id_without_a_second_role() -> None:
    identity = ReplyIdentity()
    track_of(identity=identity).feed([ROLE, THOUGHT])
    later = (ROLE + THOUGHT + HELLO).replace(b"up-1", b"up-9").replace(b'"created":2', b'"created":7')
    out = decoded(track_of(identity=identity).feed(Framer().feed(later)))
    assert [chunk["choices"][0]["delta"] for chunk in out] == [{"reasoning": "hm"}, {"content": "hello"}]
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in out} == {("up-1", 2, "alias")}


def test_a_comment_after_content_is_relayed() -> None:
    track = track_of()
    track.feed([ROLE, HELLO])
    assert track.feed([b": keep-alive\n\n"]) == b": keep-alive\n\n"


def test_an_event_that_does_not_parse_is_relayed_as_content() -> None:
    track = track_of()
    assert track.feed([b"data: {oops\n\n"]) == b"data: {oops\n\n"
    assert track.content
    assert track.failure is None


def test_with_n_2_the_other_choices_role_goes_out_too() -> None:
    track = track_of(asked(choices=2))
    roles = [ROLE, event({"role": "assistant", "content": ""}, index=1)]
    assert len(decoded(track.feed([*roles, HELLO]))) == 3


# -- was it whole? ----------------------------------------------------------------------------------------------------


def test_done_alone_is_not_success() -> None:
    track = track_of()
    track.feed([ROLE, HELLO, DONE])
    assert track.done
    assert not track.whole


def test_a_finish_reason_is_success_without_done() -> None:
    track = track_of()
    track.feed([ROLE, HELLO, STOP])
    assert track.whole
    assert not track.done


def test_every_choice_needs_its_finish_reason() -> None:
    track = track_of(asked(choices=2))
    track.feed([HELLO, STOP])
    assert not track.whole
    track.feed([event({}, "length", index=1)])
    assert track.whole


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_finish_reason_that_means_failure_is_one(reason: str) -> None:
    track = track_of()
    out = track.feed([ROLE, HELLO, event({"content": "x"}, reason), HELLO])
    assert reason.encode() not in out
    assert out.count(b"hello") == 1
    assert track.failure is not None
    assert reason in track.failure
    assert not track.whole


def test_an_error_event_is_a_failure_even_after_the_finish_reason() -> None:
    track = track_of()
    out = track.feed([HELLO, STOP, b'data: {"error": {"message": "EngineCore died"}}\n\n', DONE])
    assert b"error" not in out
    assert track.failure == "sent an error event: EngineCore died"
    assert not track.whole


def test_a_model_that_says_error_has_not_failed() -> None:
    track = track_of()
    track.feed([HELLO, event({"content": '"error": {"message": "x"}'}), event({"error": None}), STOP])
    assert track.failure is None
    assert track.whole


def test_repetition_becomes_stop_and_is_told() -> None:
    track = track_of()
    out = track.feed([HELLO, event({"content": '"finish_reason":"repetition"'}), event({}, "repetition")])
    assert decoded(out)[-1]["choices"][0]["finish_reason"] == "stop"
    assert decoded(out)[1]["choices"][0]["delta"]["content"] == '"finish_reason":"repetition"'
    track.conclude()
    assert track.violations == {"repetition"}
    assert track.whole


# -- usage ------------------------------------------------------------------------------------------------------------

USAGE = dump({"id": "up-1", "created": 2, "model": "served", "choices": [], "usage": {"prompt_tokens": 3}})


def test_a_usage_chunk_that_only_we_asked_for_is_taken_out_and_read() -> None:
    track = track_of(asked(usage=False))
    out = track.feed([ROLE, HELLO, STOP, USAGE, DONE])
    assert b"usage" not in out
    assert track.usage == {"prompt_tokens": 3}


def test_a_usage_chunk_that_the_client_asked_for_is_kept() -> None:
    track = track_of(asked(usage=True))
    assert decoded(track.feed([ROLE, HELLO, STOP, USAGE]))[-1]["usage"] == {"prompt_tokens": 3}
    own = asked(usage=False)
    own.own_usage = True
    assert b"usage" in track_of(own).feed([ROLE, HELLO, STOP, USAGE])


def test_usage_beside_choices_is_not_taken_out() -> None:
    track = track_of(asked(usage=False))
    out = track.feed([ROLE, event({"content": "x"}, usage={"prompt_tokens": 3}), event({}, "stop", usage=None)])
    assert len(decoded(out)) == 3


def test_empty_choices_without_usage_are_not_taken_out() -> None:
    track = track_of(asked(usage=False))
    track.feed([ROLE, HELLO])
    filter_results = dump({"id": "up-1", "created": 2, "model": "served", "choices": [], "prompt_filter_results": []})
    assert decoded(track.feed([filter_results]))[0]["prompt_filter_results"] == []


# -- an empty answer --------------------------------------------------------------------------------------------------


def test_an_empty_answer_is_held_whole_and_can_still_be_delivered() -> None:
    track = track_of()
    assert track.feed([ROLE, STOP, DONE]) == b""
    assert track.whole
    assert decoded(track.release_held()) == decoded((ROLE + STOP).replace(b"served", b"alias"))


@pytest.mark.parametrize("index", [None, "0", [0], {"a": 1}])
def test_an_odd_index_is_no_reason_to_fail_inside_the_gateway(index: object) -> None:
    track = track_of()
    track.feed([HELLO, dump({"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]})])
    assert track.failure is None
