"""A chat stream as the stream of a response, however it comes in pieces; and a whole answer as a response."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.dialects.responses import stream as responses_stream
from gateway.apps.dialects.responses.answer import Ids, to_response
from gateway.apps.dialects.responses.request import RequestEcho
from gateway.apps.dialects.responses.stream import ResponseStream
from gateway.domain.upstream import ProtocolFailure
from gateway.errors import STREAM_INTERRUPTED, GatewayError
from tests.apps.dialects.answers import DONE, USAGE, Answer, called, chunk
from tests.apps.dialects.parts import response_to_chat
from tests.apps.dialects.streams import BEAT, COMMENT, ROLE, answers, streams

IDS = Ids("r", 1700000000)
PLAIN = RequestEcho("main")
SUMMED = RequestEcho("main", b'{"store":false}', summary=True, carried=True)
asked = st.sampled_from([PLAIN, SUMMED])


def uncounted(_: int) -> None:
    """A `hold` without a limit."""


def streamed(events: Sequence[bytes], asked: RequestEcho = PLAIN) -> list[dict[str, Any]]:
    return told(ResponseStream(asked, IDS).translate(events, uncounted))


def told(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream; each is named by its type, and they are numbered. Comments are left out."""
    found = []
    for event in stream.split(b"\n\n")[:-1]:
        if not event.startswith(b":"):
            name, data = event.decode().split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def whole(answer: Answer, asked: RequestEcho = PLAIN) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_response(answer.whole(), asked, IDS))
    return found


def accumulated(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items, put together from their deltas alone; each event finds its item open."""
    items: dict[int, dict[str, Any]] = {}
    texts: dict[int, str] = {}
    ended: list[int] = []
    for event in events:
        kind, index = event["type"].removeprefix("response."), event.get("output_index")
        if kind == "output_item.added":
            assert index == len(items)
            assert event["item"]["status"] == "in_progress"
            items[index], texts[index] = event["item"], ""
        elif index is not None:
            assert index not in ended
            assert event.get("item_id", items[index]["id"]) == items[index]["id"]
            if kind.endswith(".delta"):
                texts[index] += event["delta"]
            elif kind == "output_item.done":
                ended.append(index)
                items[index] = event["item"]
            elif kind.endswith(("text.done", "arguments.done")):
                assert event.get("text", event.get("arguments")) == texts[index]
    assert sorted(ended) == sorted(items)
    for index, item in items.items():
        assert texts[index] == said_in(item)
    return [items[index] for index in sorted(items)]


def said_in(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    (part,) = item.get("content") or item["summary"]
    return str(part["text"])


@given(st.data(), answers(), asked)
def test_a_stream_in_any_pieces_says_what_the_whole_answer_says(
    data: st.DataObject, answer: Answer, asked: RequestEcho
) -> None:
    beside: bool = data.draw(st.booleans())
    events = streamed(data.draw(streams(answer, beside=beside)), asked)
    assert kinds(events)[:2] == ["created", "in_progress"]
    response = whole(answer, asked)
    assert accumulated(events) == response["output"]
    assert events[-1]["type"] == f"response.{response['status']}"
    assert events[-1]["response"] == response


@given(st.data(), answers())
def test_the_bytes_are_the_same_however_the_events_arrive(data: st.DataObject, answer: Answer) -> None:
    events = data.draw(streams(answer))
    places = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=6)))
    stream = ResponseStream(PLAIN, IDS)
    parts = [events[a:b] for a, b in pairwise([0, *places, len(events)])]
    together = ResponseStream(PLAIN, IDS).translate(events, uncounted)
    assert b"".join(stream.translate(part, uncounted) for part in parts) == together


def test_the_events_of_text_are_in_the_order_of_the_api() -> None:
    events = streamed([ROLE, chunk({"content": "a"}), chunk({"content": "b"}), chunk({"content": "c"}, "stop"), DONE])
    text = ["output_text.delta"] * 3
    begun = ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds(events) == [*begun, *text, "output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event["delta"] for event in events[4:7]] == ["a", "b", "c"]


def test_a_summary_of_the_thoughts_has_its_own_events() -> None:
    events = kinds(streamed([chunk({"reasoning": "hm"}), chunk({"content": "a"}, "stop"), DONE], SUMMED))
    part, text = "reasoning_summary_part", "reasoning_summary_text"
    assert events[3:8] == [f"{part}.added", f"{text}.delta", f"{text}.done", f"{part}.done", "output_item.done"]


def test_a_call_ends_before_the_next_item_begins() -> None:
    first, second = called(0, "a", "now", "{}"), called(1, "b", "now", '{"x": 1}')
    events = kinds(streamed([chunk(first), chunk(second), chunk({}, "tool_calls"), DONE]))
    assert events.index("output_item.done") < len(events) - 1 - events[::-1].index("output_item.added")


def test_text_after_a_call_is_an_item_of_its_own() -> None:
    text, call = [chunk({"content": piece}) for piece in "ab"], chunk(called(0, "a", "now", "{}"))
    items = accumulated(streamed([*text, call, *text, chunk({}, "stop"), DONE]))
    assert [said_in(item) for item in items] == ["ab", "{}", "ab"]


def test_white_space_begins_no_item_and_is_not_lost() -> None:
    alone, before = chunk({"content": "\n\n"}), [chunk({"content": "\n"}), chunk({"content": " a"}), chunk({}, "stop")]
    assert [said_in(item) for item in accumulated(streamed([*before, DONE]))] == ["\n a"]
    call = chunk(called(0, "a", "now", "{}"), "tool_calls")
    assert [item["type"] for item in accumulated(streamed([alone, call, DONE]))] == ["function_call"]


def test_a_call_without_arguments_and_id_has_some() -> None:
    events = streamed([chunk(called(0, None, "now")), chunk({}, "tool_calls"), DONE])
    (call,) = events[-1]["response"]["output"]
    assert (call["arguments"], call["call_id"], call["name"]) == ("{}", "call_r_0", "now")


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_is_incomplete_in_its_last_item(finish: str, reason: str) -> None:
    response = whole(Answer("hm", "Half a sen", finish=finish))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


def test_a_heartbeat_is_a_numbered_event_and_the_first_one_begins_the_response() -> None:
    assert kinds(streamed([BEAT, COMMENT, BEAT, BEAT])) == ["created", "in_progress", "keepalive", "keepalive"]


def test_a_failure_is_told_in_both_ways_and_nothing_looks_complete() -> None:
    error = GatewayError("stream_interrupted", STREAM_INTERRUPTED).envelope()
    events = streamed([chunk({"content": "a"}), b"data: " + error + b"\n\n"])
    flat, failed = events[-2:]
    assert (flat["type"], flat["code"], flat["message"]) == ("error", "stream_interrupted", STREAM_INTERRUPTED)
    assert flat["error"]["message"] == STREAM_INTERRUPTED
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "stream_interrupted", "message": STREAM_INTERRUPTED}
    assert "output_item.done" not in kinds(events)


def test_tokens_have_the_names_of_the_api() -> None:
    usage = whole(Answer(text="a", usage={**USAGE, "completion_tokens_details": {"reasoning_tokens": 2}}))["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 2}
    assert usage["input_tokens"] == USAGE["prompt_tokens"]
    assert usage["total_tokens"] == USAGE["prompt_tokens"] + USAGE["completion_tokens"]


def test_an_answer_repeats_its_request_and_keeps_nothing() -> None:
    body = {"model": "main", "input": "hi", "instructions": "Be\nshort.", "store": True, "temperature": 0.5}
    _, asked = response_to_chat(json.dumps(body, indent=1).encode())
    (created, *_) = streamed([ROLE], asked)
    response = created["response"]
    assert (response["instructions"], response["temperature"]) == ("Be\nshort.", 0.5)
    assert (response["store"], response["tool_choice"], response["tools"]) == (False, "auto", [])
    assert response["text"] == {"format": {"type": "text"}}


def test_an_answer_without_end_is_a_failure_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_stream, "TEXT_MOST", 1000)
    text = chunk({"content": "x" * 300})
    with pytest.raises(ProtocolFailure, match="more than 1,000 bytes"):
        streamed([text] * 4)


def test_the_text_that_is_kept_is_counted() -> None:
    held: list[int] = []
    stream = ResponseStream(PLAIN, IDS)
    for _ in range(5):
        stream.translate([chunk({"content": "x" * 50_000})], held.append)
    assert sum(held) >= 200_000


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": 1}'])
def test_what_is_no_answer_is_a_failure_of_the_backend(body: bytes) -> None:
    with pytest.raises(ProtocolFailure):
        to_response(body, PLAIN, IDS)
