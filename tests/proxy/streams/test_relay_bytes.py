"""Relayed streams, byte by byte: what is kept, what is added, and what is odd but whole."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from tests.proxy.streams.stage import DONE, GOOD, HELLO, ROLE, STOP, USAGE, Stage, captured, event, renamed, says, sends
from tests.scripted import END, SSE_HEAD, Turn, chunked
from tests.scripted import answer as http_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")


# -- the same bytes ---------------------------------------------------------------------------------------------------

STREAMS: dict[str, dict[str, Any]] = {
    "chat_stream": {},
    "chat_stream_length": {},
    "chat_stream_usage": {"stream_options": {"include_usage": True}},
    "chat_stream_usage_cont": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "chat_n2_stream": {"n": 2, "stream_options": {"include_usage": True}},
    "completions_stream": {"prompt": "x", "stream_options": {"include_usage": True}},
    "reason_stream": {"stream_options": {"include_usage": True}},
    "reason_thinking_off_stream": {},
    "tool_auto_scripted_stream": {"stream_options": {"include_usage": True}},
    "tool_auto_parallel_scripted_stream": {},
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_captured_stream_arrives_byte_for_byte_but_for_its_model(stage: Stage, name: str) -> None:
    events = captured(name)
    stage.s.play(says(*events))
    path = "/v1/completions" if name.startswith("completions") else "/v1/chat/completions"
    reply = await stage.ask(path=path, **STREAMS[name])
    assert reply.body == b"".join(events).replace(b'"model":"tiny"', b'"model":"chat"')
    assert (reply.status, reply.ended) == (200, True)


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_pieces_of_any_size_make_the_same_stream(stage: Stage, size: int) -> None:
    data = b"".join(captured("chat_stream"))
    stage.s.play(sends(*(data[i : i + size] for i in range(0, len(data), size))))
    assert (await stage.ask()).body == data.replace(b'"model":"tiny"', b'"model":"chat"')


async def test_unknown_fields_go_through_both_ways(stage: Stage) -> None:
    odd: dict[str, Any] = {
        "chat_template_kwargs": {"enable_thinking": False},
        "top_k": 20,
        "structured_outputs": {"choice": ["a", "b"]},
        "vllm_xargs": {"script": "x"},
        "return_token_ids": True,
        "unheard_of": [None, {"deep": 1.5}],
    }
    first = event({"role": "assistant", "content": ""}, prompt_token_ids=[1, 2], unheard_of={"a": 1})
    said = b'data: {"id":"up-1","model":"served/model","created":2,"choices":[{"index":0,"delta":{"content":"x"},'
    said += b'"finish_reason":null,"token_ids":[7],"odd":1.50}]}\n\n'
    stage.s.play(says(first, said, STOP, DONE))
    reply = await stage.ask(**odd)
    assert reply.body == renamed(first, said, STOP, DONE)
    (turn,) = stage.s.turns
    assert {name: turn.json[name] for name in odd} == odd
    assert turn.json["model"] == "served/model"


async def test_a_whole_answer_arrives_byte_for_byte_but_for_its_model(stage: Stage) -> None:
    body = (
        b'{"id":"x", "model":"served/model","choices":[{"index":0,"message":{"content":"\\u00e9 \\"model\\":\\"x\\""},'
        b'"finish_reason":"stop","token_ids":[1]}],"prompt_token_ids":[1,2],"usage":{"prompt_tokens":3},"odd":1.50}'
    )

    async def script(turn: Turn) -> None:
        await turn.send(http_answer(body, "200 OK", "application/json", "server: up", "set-cookie: a=b"))

    stage.s.play(script)
    reply = await stage.ask(stream=False)
    assert reply.body == body.replace(b'"model":"served/model"', b'"model":"chat"')
    assert (reply.headers["content-type"], reply.ended) == ("application/json", True)
    assert {"server", "set-cookie"}.isdisjoint(reply.headers)


async def test_a_streams_headers_are_ours(stage: Stage) -> None:
    stage.s.play(GOOD)
    headers = (await stage.ask()).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert (headers["x-gateway-alias"], headers["x-gateway-backend"]) == ("chat", "s")
    assert headers["x-gateway-attempts"] == "1"
    assert headers["x-request-id"] == stage.s.turns[0].headers["x-request-id"]
    assert "x-gateway-committed" not in headers


@pytest.mark.parametrize("kind", [b"Text/Event-Stream", b"TEXT/EVENT-STREAM; Charset=UTF-8"])
async def test_the_type_of_a_stream_is_read_in_any_case(stage: Stage, kind: bytes) -> None:
    said = event({"content": "hi"}), STOP, DONE
    head = SSE_HEAD.replace(b"text/event-stream", kind)
    stage.s.play(lambda turn: turn.send(head + chunked(*said) + END))
    assert (await stage.ask()).body == renamed(*said)


@pytest.mark.parametrize("asked", [1, "true"])
async def test_a_stream_that_is_asked_for_in_a_way_that_servers_take_is_one(stage: Stage, asked: object) -> None:
    stage.s.play(GOOD)
    reply = await stage.ask(stream=asked)
    assert (reply.headers["content-type"], reply.ended) == ("text/event-stream; charset=utf-8", True)
    assert stage.s.turns[0].json["stream"] is True


async def test_content_does_not_wait_for_what_follows(stage: Stage) -> None:
    arrived = asyncio.Event()

    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO))
        async with asyncio.timeout(5):
            await arrived.wait()
        await turn.send(chunked(STOP, DONE) + END)

    stage.s.play(script)
    ask = {"model": "chat", "messages": [], "stream": True}
    async with stage.gateway.client.stream("POST", "/v1/chat/completions", json=ask) as response:
        pieces = response.aiter_raw()
        assert b"hello" in await anext(pieces)
        arrived.set()
        assert (b"".join([p async for p in pieces])).endswith(DONE)


# -- usage ------------------------------------------------------------------------------------------------------------


async def test_usage_is_asked_for_and_taken_out_again(stage: Stage) -> None:
    stage.s.play(says(ROLE, HELLO, STOP, USAGE, DONE))
    before = stage.gateway.metric("gateway_tokens_total", client="open", alias="chat", backend="s", kind="prompt")
    assert (await stage.ask()).body == renamed(ROLE, HELLO, STOP, DONE)
    assert stage.s.turns[0].json["stream_options"] == {"include_usage": True}
    after = stage.gateway.metric("gateway_tokens_total", client="open", alias="chat", backend="s", kind="prompt")
    assert after - before == 3


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}])
async def test_usage_that_the_client_asked_for_is_kept(stage: Stage, options: dict[str, bool]) -> None:
    stage.s.play(says(ROLE, HELLO, STOP, USAGE, DONE))
    assert (await stage.ask(stream_options=options)).body == renamed(ROLE, HELLO, STOP, USAGE, DONE)
    assert stage.s.turns[0].json["stream_options"] == options


async def test_without_stream_no_stream_options_are_sent(stage: Stage) -> None:
    stage.s.play(GOOD)
    await stage.ask(stream=False)
    assert "stream_options" not in stage.s.turns[0].json


# -- odd but whole ----------------------------------------------------------------------------------------------------


async def test_a_missing_done_is_added(stage: Stage) -> None:
    stage.s.play(says(ROLE, HELLO, STOP))
    reply = await stage.ask()
    assert reply.body == renamed(ROLE, HELLO, STOP, DONE)
    assert reply.ended


@pytest.mark.parametrize("missing", [b"\n", b"\n\n"])
async def test_the_last_blank_line_may_be_missing(stage: Stage, missing: bytes) -> None:
    stage.s.play(says(ROLE, HELLO, STOP.removesuffix(missing)))
    assert (await stage.ask()).body == renamed(ROLE, HELLO, STOP, DONE)


async def test_a_stream_with_crlf_is_read(stage: Stage) -> None:
    stage.s.play(says(*(e.replace(b"\n", b"\r\n") for e in (ROLE, HELLO, STOP, USAGE, DONE))))
    reply = await stage.ask()
    assert reply.body.replace(b"\r\n", b"\n") == renamed(ROLE, HELLO, STOP, DONE)
    assert reply.ended


async def test_comments_before_content_are_dropped_and_later_ones_kept(stage: Stage) -> None:
    note = b": keep-alive\n\n"
    stage.s.play(says(note, ROLE, note, HELLO, note, STOP, DONE))
    assert (await stage.ask()).body == renamed(ROLE, HELLO, note, STOP, DONE)


async def test_an_event_over_two_data_lines_is_one_event(stage: Stage) -> None:
    split = [e.replace(b',"created"', b',\ndata: "created"') for e in (ROLE, HELLO, STOP)]
    stage.s.play(says(*split, USAGE.replace(b',"created"', b',\ndata: "created"'), DONE))
    reply = await stage.ask()
    assert reply.body == renamed(*split, DONE)


async def test_gzip_is_undone_as_it_comes(stage: Stage) -> None:
    packer = zlib.compressobj(wbits=31)
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    pieces = [packer.compress(e) + packer.flush(zlib.Z_SYNC_FLUSH) for e in (ROLE, HELLO, STOP, DONE)]

    async def script(turn: Turn) -> None:
        assert turn.headers["accept-encoding"] == "identity"
        await turn.send(head + chunked(*pieces, packer.flush()) + END)

    stage.s.play(script)
    reply = await stage.ask()
    assert reply.body == renamed(ROLE, HELLO, STOP, DONE)
    assert "content-encoding" not in reply.headers


@pytest.mark.parametrize("odd", [b"data: {oops\n\n", b"data: text\n\n", b"data: [1]\n\n", b'data: {"a": "\xff"}\n\n'])
async def test_an_event_that_does_not_parse_is_relayed_as_it_is(stage: Stage, odd: bytes) -> None:
    stage.s.play(says(ROLE, HELLO, odd, STOP, DONE))
    reply = await stage.ask()
    assert reply.body == renamed(ROLE, HELLO, odd, STOP, DONE)
    assert reply.ended


async def test_an_unparsable_event_may_be_the_first(stage: Stage) -> None:
    stage.s.play(says(b"data: {oops\n\n", HELLO, STOP, DONE))
    reply = await stage.ask("pair")
    assert (reply.headers["x-gateway-backend"], reply.ended) == ("s", True)
    assert reply.body.startswith(b"data: {oops\n\n")


async def test_a_connection_is_used_again_after_a_whole_stream(stage: Stage) -> None:
    read = asyncio.Event()

    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO, STOP, DONE))
        await read.wait()
        await turn.send(END)  # a moment after [DONE], as real servers do

    stage.s.play(script)
    for _ in range(3):
        read.clear()
        await stage.ask()
        read.set()
        await stage.gateway.until(stage.gateway.idle)
    assert len({turn.connection for turn in stage.s.turns}) == 1
