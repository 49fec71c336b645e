"""A chat stream as the stream of a message, however it comes in pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.dialects.anthropic.stream import MessageStream
from gateway.errors import STREAM_INTERRUPTED, GatewayError
from tests.apps.dialects.answers import (
    DONE,
    USAGE,
    Answer,
    accumulated,
    called,
    captured,
    chunk,
    kinds,
    message,
    respaced,
    same,
    streamed,
    told,
    well_formed,
)
from tests.apps.dialects.streams import BEAT, COMMENT, ROLE, answers, streams

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

# -- any answer, in any pieces ----------------------------------------------------------------------------------------


@given(st.data(), answers())
def test_a_stream_in_any_pieces_says_what_the_whole_answer_says(data: st.DataObject, answer: Answer) -> None:
    stream = streamed(data.draw(streams(answer)))
    well_formed(stream)
    same(stream, answer.whole())


@given(st.data(), answers())
def test_calls_that_come_in_turns_are_all_there(data: st.DataObject, answer: Answer) -> None:
    stream = streamed(data.draw(streams(answer, beside=True)))
    well_formed(stream, beside=True)
    same(stream, answer.whole())


@given(st.data(), answers())
def test_the_bytes_are_the_same_however_the_events_arrive(data: st.DataObject, answer: Answer) -> None:
    events = data.draw(streams(answer))
    places = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=6)))
    stream = MessageStream("r")
    parts = [events[a:b] for a, b in pairwise([0, *places, len(events)])]
    assert b"".join(stream.translate(part) for part in parts) == streamed(events)


@given(st.data(), answers())
def test_every_event_is_answered_at_once_but_for_white_space(data: st.DataObject, answer: Answer) -> None:
    """A client's watchdog must see that something comes; and nothing is kept for later."""
    stream = MessageStream("r")
    for event in data.draw(streams(answer)):
        out = stream.translate([event])
        assert out or b'"finish_reason":null' not in event.replace(b" ", b"")
        assert event != COMMENT or out == COMMENT


# -- white space ------------------------------------------------------------------------------------------------------


def texts(*events: bytes) -> list[str]:
    return [block["text"] for block in accumulated(streamed([*events, *Answer().end()]))["content"] if "text" in block]


def test_white_space_alone_makes_no_block() -> None:
    events = [ROLE, chunk({"content": "\n"}), chunk({"content": "\n"}), chunk(called(0, "a", "now", "{}"))]
    assert kinds(streamed([*events, *Answer(finish="tool_calls").end()])).count("content_block_start") == 1
    assert texts(*events) == []


def test_white_space_before_a_text_belongs_to_it() -> None:
    assert texts(chunk({"content": "\n"}), chunk({"content": "\n"}), chunk({"content": "hi"})) == ["\n\nhi"]


def test_white_space_within_a_text_is_kept() -> None:
    assert texts(chunk({"content": "a"}), chunk({"content": " \n"}), chunk({"content": "b"})) == ["a \nb"]


@pytest.mark.parametrize("between", [{"reasoning": "hm"}, called(0, "a", "now", "{}")], ids=["thoughts", "a call"])
def test_white_space_around_thoughts_and_calls_belongs_to_no_text(between: dict[str, Any]) -> None:
    assert texts(chunk({"content": "\n"}), chunk(between), chunk({"content": "b"})) == ["b"]


def test_white_space_between_calls_makes_no_block() -> None:
    calls = chunk(called(0, "a", "now", "{}")), chunk({"content": "\n"}), chunk(called(1, "b", "now", "{}"))
    assert texts(*calls) == []
    well_formed(streamed([*calls, *Answer().end()]))


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_a_block_ends_when_another_kind_begins() -> None:
    events = [{"reasoning": "a"}, {"content": "b"}, {"reasoning": "c"}, called(0, "x", "now", "{}"), {"content": "d"}]
    stream = streamed([*map(chunk, events), *Answer().end()])
    well_formed(stream)
    blocks = accumulated(stream)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "thinking", "tool_use", "text"]


def test_a_call_ends_when_the_next_begins() -> None:
    """Claude Code begins to run it then."""
    stream = MessageStream("r")
    stream.translate([chunk(called(0, "a", "now", '{"x":')), chunk(called(0, arguments=" 1}"))])
    begun = stream.translate([chunk(called(1, "b", "now", ""))])
    assert kinds(begun) == ["content_block_stop", "content_block_start"]


def test_a_call_that_is_not_whole_yet_is_not_ended_by_the_next() -> None:
    stream = MessageStream("r")
    stream.translate([chunk(called(0, "a", "now", '{"x":'))])
    assert kinds(stream.translate([chunk(called(1, "b", "now", '{"y": 2}'))]))[0] == "content_block_start"
    [late] = told(stream.translate([chunk(called(0, arguments=" 1}"))]))
    assert (late["index"], late["delta"]["partial_json"]) == (0, " 1}")
    stops = [
        event["index"] for event in told(stream.translate(Answer().end())) if event["type"] == "content_block_stop"
    ]
    assert sorted(stops) == [0, 1]


def test_what_comes_behind_a_whole_call_is_not_sent_into_a_block_that_has_ended() -> None:
    events = [called(0, "a", "now", "{}"), called(1, "b", "now", "{}"), called(0, arguments="\n")]
    well_formed(streamed([*map(chunk, events), *Answer().end()]))


def test_a_call_that_was_cut_off_is_ended_too() -> None:
    stream = streamed([chunk(called(0, "a", "now", '{"city": "Os')), *Answer(finish="length").end()])
    well_formed(stream)
    final = accumulated(stream)
    assert (final["stop_reason"], final["content"][0]["name"]) == ("max_tokens", "now")


def test_an_answer_that_says_nothing_is_a_message_without_blocks() -> None:
    stream = streamed([ROLE, *Answer().end()])
    assert [kind for kind in kinds(stream) if kind != "ping"] == ["message_start", "message_delta", "message_stop"]
    same(stream, Answer().whole())


# -- pieces of text that are passed on unparsed -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["content", "reasoning"])
@pytest.mark.parametrize("odd", ['"', "\\", '\\"', "\n", "\u2028", "é", "😀", '"}}],"x":"', " "])
def test_a_text_with_anything_in_it_arrives_as_it_is(name: str, odd: str) -> None:
    """Between plain ones, which look alike but for their text."""
    plain, like = ["one", "two", odd, "three", f"a{odd}", f"{odd}b", "end"], [f"{x}{odd}z" for x in "abc"]
    for said_ in (plain, like):
        for events in (pieces(name, said_), [respaced(event) for event in pieces(name, said_)]):
            [block] = accumulated(streamed([ROLE, *events, *Answer().end()]))["content"]
            assert block.get("text", block.get("thinking")) == "".join(said_)


def test_like_pieces_go_into_the_block_that_is_open() -> None:
    turns = [("reasoning", "a"), ("content", "b"), ("reasoning", "c"), ("content", "d")]
    events = [event for name, text in turns for event in pieces(name, [text] * 3)]
    stream = streamed([ROLE, *events, chunk(called(0, "x", "now", "{}")), *pieces("content", ["e"] * 3), DONE])
    well_formed(stream)
    blocks = accumulated(stream)["content"]
    assert [block.get("text", block.get("thinking")) for block in blocks] == ["aaa", "bbb", "ccc", "ddd", None, "eee"]


def test_a_piece_that_looks_alike_but_says_more_is_read() -> None:
    so_far = {"prompt_tokens": 12, "completion_tokens": 3}
    stream = MessageStream("r")
    stream.translate([ROLE, *pieces("content", ["a", "b"]), chunk({"content": "c"}, "length", usage=so_far)])
    assert told(stream.translate([DONE]))[1]["delta"]["stop_reason"] == "max_tokens"


def test_an_empty_piece_is_a_heartbeat() -> None:
    stream = MessageStream("r")
    stream.translate([ROLE, *pieces("content", ["a", "b"])])
    assert stream.translate(pieces("content", [""])) == PING


# -- heartbeats and tokens --------------------------------------------------------------------------------------------


def test_the_first_heartbeat_begins_the_message_and_the_others_are_pings() -> None:
    stream = MessageStream("r")
    assert kinds(stream.translate([BEAT])) == ["message_start"]
    assert stream.translate([BEAT]) == PING
    assert stream.translate([BEAT, BEAT]) == PING + PING


def test_a_chunk_that_says_something_is_no_heartbeat() -> None:
    stream = MessageStream("r")
    stream.translate([ROLE])
    assert "ping" not in kinds(stream.translate([chunk({"content": "a"}), chunk({"content": "b"}), *Answer().end()]))


def test_the_message_is_named_by_the_request_and_its_tokens_are_not_counted_yet() -> None:
    begun = told(MessageStream("my-id").translate([ROLE]))[0]["message"]
    assert (begun["id"], begun["model"], begun["role"]) == ("msg_my-id", "main", "assistant")
    assert begun["usage"] == {"input_tokens": 0, "output_tokens": 0}


def test_a_backend_that_counts_as_it_goes_is_believed() -> None:
    """vLLM's continuous_usage_stats."""
    so_far = {"prompt_tokens": 12, "completion_tokens": 1}
    stream = MessageStream("r")
    assert told(stream.translate([chunk({"content": "a"}, usage=so_far)]))[0]["message"]["usage"]["input_tokens"] == 12
    ended = told(stream.translate(Answer().end()))[-2]
    assert ended["usage"] == {"input_tokens": 12, "output_tokens": 14}


# -- what is no chunk -------------------------------------------------------------------------------------------------


def test_comments_go_through_as_they_are() -> None:
    assert MessageStream("r").translate([COMMENT]) == COMMENT


@pytest.mark.parametrize("event", [b"data: {oops\n\n", b"data: []\n\n", b'data: "\xff"\n\n', b"id: 7\n\n"])
def test_what_is_no_chunk_goes_through_as_it_is(event: bytes) -> None:
    stream = MessageStream("r")
    stream.translate([ROLE])
    assert stream.translate([event]) == event


def test_an_error_is_an_event_of_its_own_and_nothing_ends() -> None:
    stream = MessageStream("my-id")
    stream.translate([ROLE, chunk({"content": "a"})])
    error = GatewayError("stream_interrupted", STREAM_INTERRUPTED)
    [event] = told(stream.translate([b"data: " + error.envelope() + b"\n\n"]))
    assert event == {
        "type": "error",
        "error": {"type": "api_error", "message": STREAM_INTERRUPTED, "code": "stream_interrupted"},
        "request_id": "my-id",
    }


# -- what a real vLLM says --------------------------------------------------------------------------------------------


def pieces(name: str, texts_: list[str]) -> list[bytes]:
    return [chunk({name: text}) for text in texts_]


# The chat events of vLLM 0.32 for the scripts of its own messages streams.
REAL = {
    "messages_stream": [
        ROLE,
        *pieces("reasoning", ["\n", "h", "m", ".", "\n"]),
        *pieces("content", ["\n", "\n", "H", "el", "lo", "."]),
        *Answer(usage=USAGE).end(),
    ],
    "messages_tool_stream": [
        ROLE,
        chunk({"reasoning": "\nhm.\n"}),
        *pieces("content", ["\n", "\nSure.\n"]),
        chunk({"content": None} | called(0, "chatcmpl-tool-95737a36331c21ce", "get_weather")),
        *(
            chunk({"content": None} | called(0, arguments=piece))
            for piece in ['{"', "c", "ity", '": "', "Os", "lo", '"', "}"]
        ),
        *Answer(finish="tool_calls", usage={"prompt_tokens": 169, "completion_tokens": 39}).end(),
    ],
}


@pytest.mark.parametrize("name", REAL)
def test_it_says_what_a_real_vllm_says_in_its_own_messages_stream(name: str) -> None:
    theirs, ours = captured(name), streamed(REAL[name])
    well_formed(ours)
    assert outline(ours) == outline(theirs)
    compared = ("type", "role", "content", "stop_reason", "stop_sequence", "usage")
    ended, wanted = accumulated(ours), accumulated(theirs)
    wanted["content"][0]["signature"] = ""
    assert {key: ended[key] for key in compared} == {key: wanted[key] for key in compared}


def outline(stream: bytes) -> list[tuple[str, object]]:
    """The kinds of its events, each with its block; several deltas of one block are one. Theirs sign a thought."""
    found: list[tuple[str, object]] = []
    for event in told(stream):
        step = (event["type"], event.get("index"))
        signs = event.get("delta", {}).get("type") == "signature_delta"
        if event["type"] != "ping" and not signs and found[-1:] != [step]:
            found.append(step)
    return found


def test_the_last_event_is_the_end() -> None:
    assert streamed([ROLE, DONE]).endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert message(Answer().whole())["stop_reason"] == "end_turn"
