"""Responses of servers as the request path reads them: any event, well-formed or not, becomes part of a chat or is the
server's failure; what nothing was changed of comes out again as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.dialects.responses.answer import Ids
from gateway.apps.dialects.responses.own_answer import REPEATS, ResponseReader, chat_of
from gateway.apps.dialects.responses.relayed import RelayedStream, whole_response
from gateway.apps.dialects.responses.request import RequestEcho
from gateway.domain.endpoints import CHAT
from gateway.domain.request import parse
from gateway.domain.upstream import ProtocolFailure
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import read_whole
from gateway.transport.sse import Framer
from tests import native_responses as native
from tests.mutations import mutated, mutated_one_of

ASKED, IDS = RequestEcho("main", b'{"store":false,"previous_response_id":null}'), Ids("r", 1700000000)
REQUEST = parse(CHAT, b'{"model":"main","messages":[{"role":"user","content":"hi"}],"stream":true}')
SEARCH = {"id": "ws", "type": "web_search_call", "status": "completed"}
ITEMS = native.thoughts("hm"), native.message("hello"), native.call({"city": "Oslo"}), SEARCH
EVENTS = native.stream(*ITEMS)
DATA: list[Any] = [json.loads(event.partition(b"data: ")[2]) for event in EVENTS]


def through(events: list[bytes], piece: int = 1) -> tuple[bytes, StreamTrack]:
    """What a client gets of these events, in pieces of so many."""
    reader, track, relayed = ResponseReader(), StreamTrack(REQUEST, ReplyIdentity()), RelayedStream(ASKED, IDS)
    framer, out = Framer(), b""
    for at in range(0, len(events), piece):
        chunks = reader.read(events[at : at + piece])
        out += relayed.translate(framer.feed(track.feed(Framer().feed(chunks))), lambda size: None)
    return out, track


def told(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(event.partition(b"data: ")[2]) for event in out.split(b"\n\n") if b"data: " in event]


@pytest.mark.parametrize("piece", [1, 3, 100])
def test_an_unchanged_stream_comes_out_as_it_was(piece: int) -> None:
    out, track = through(EVENTS, piece)
    assert out.endswith(b"\n\n")
    assert [event + b"\n\n" for event in out.split(b"\n\n")[2:-2]] == EVENTS[2:-1]
    assert told(out)[-1]["response"] == {
        **DATA[-1]["response"],
        "id": "resp_r",
        "model": "main",
        **json.loads(ASKED.echo),
    }
    assert (track.whole, track.done, track.model) == (True, True, "served/model")
    assert track.finished == {0: "tool_calls"}
    assert track.usage is not None
    assert (track.usage["prompt_tokens"], track.usage["completion_tokens"]) == (100, 7)


def test_an_unchanged_whole_answer_comes_out_as_it_was() -> None:
    body = json.dumps(native.whole(*ITEMS)).encode()
    answer = read_whole(chat_of(body), REQUEST)
    assert answer.failure is None
    assert answer.model == "served/model"
    out = json.loads(whole_response(answer.body, ASKED, IDS))
    assert out == {**json.loads(body), "id": "resp_r", "model": "main", "previous_response_id": None}


def test_a_server_that_streams_nothing_but_the_end_has_answered() -> None:
    out, track = through([EVENTS[0], EVENTS[-1]])
    assert track.content
    assert told(out)[-1]["response"]["output"] == list(ITEMS)


def test_the_same_delta_again_and_again_is_garbage() -> None:
    reader = ResponseReader()
    events = native.stream(native.message("!" * (REPEATS + 2)), piece=1)
    for event in events[: REPEATS + 4]:
        reader.read([event])
    assert reader.violation is None
    reader.read(events[REPEATS + 4 :])
    assert reader.violation == "garbage"


def test_the_field_of_the_original_cannot_be_known() -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"original":{"number":0,"choices":0,"data":{}}}\n\n'
    out = RelayedStream(ASKED, IDS).translate([event], lambda size: None)
    assert told(out)[0]["response"]["id"] == "resp_r"


@given(mutated_one_of(DATA), st.integers(1, 5))
def test_any_event_is_read_or_the_servers_failure(data: list[bytes], piece: int) -> None:
    events = [b"event: x\ndata: " + one.replace(b"\n", b"") + b"\n\n" for one in data]
    try:
        out, track = through(events, piece)
    except ProtocolFailure:
        return
    assert (
        out == b""
        or track.failure is not None
        or [event["sequence_number"] for event in told(out)] == list(range(len(told(out))))
    )


@given(mutated(native.whole(*ITEMS)))
def test_any_whole_answer_is_read_or_the_servers_failure(body: bytes) -> None:
    try:
        answer = read_whole(chat_of(body), REQUEST)
        if answer.failure is None:
            whole_response(answer.body, ASKED, IDS)
    except ProtocolFailure:
        pass


def begun(number: int) -> bytes:
    item = {"type": "function_call", "id": None, "call_id": f"c{number}", "name": "now", "arguments": "{}"}
    return b"data: " + json.dumps({"type": "response.output_item.added", "item": item}).encode() + b"\n\n"


def test_calls_without_an_id_are_each_a_call_and_their_number_is_bounded() -> None:
    reader = ResponseReader()
    chunks = [
        json.loads(event.partition(b"data: ")[2]) for event in reader.read(map(begun, range(3))).split(b"\n\n")[:3]
    ]
    assert [chunk["choices"][0]["delta"]["tool_calls"][0]["index"] for chunk in chunks] == [0, 1, 2]
    with pytest.raises(ProtocolFailure, match="more than 1024 calls"):
        reader.read(map(begun, range(2000)))
