"""Every fault that can be switched on does on the wire what its name says: inside an answer."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest

from tests.simulator.steered import CHAT, JSON, WEATHER, finish, sim, streamed, tokens
from tests.simulator.wire import Reply, ask, chat, connected, said

# --- inside an answer ---


async def test_hang_mid_falls_silent_after_so_many_tokens() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("hang_mid", after=3)
    async with spark.serve() as url:
        hanging = asyncio.create_task(ask(url, CHAT, streamed()))
        await spark.wait_for(lambda: spark.engine.running and spark.engine.running[0].made == 3)
        assert spark.engine.counters.generation_tokens == 3
        spark.clear()
        assert finish(await hanging) == "stop"


@pytest.mark.parametrize("after", [0, 3, 500])
async def test_die_mid_ends_the_connection_after_so_many_tokens(after: int) -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("die_mid", after=after)
    async with spark.serve() as url:
        reply = await ask(url, CHAT, streamed())
    assert not reply.whole
    assert tokens(reply) == after
    assert finish(reply) is None


async def test_die_mid_without_stream_cuts_the_body() -> None:
    spark = sim()
    spark.fault("die_mid", after=3)
    async with spark.serve() as url:
        reply = await ask(url, CHAT, chat())
    assert reply.status == 200
    assert not reply.whole


async def test_error_event_is_followed_by_done() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("error_event", after=2)
    async with spark.serve() as url:
        reply = await ask(url, CHAT, streamed())
        whole = await ask(url, CHAT, chat())
    assert tokens(reply) == 2
    assert reply.events[-2]["error"]["code"] == 500
    assert reply.events[-1] == "[DONE]"
    assert whole.status == 500
    assert "EngineCore" in whole.json["error"]["message"]


async def test_end_without_finish_is_a_clean_end() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("end_without_finish", after=2)
    async with spark.serve() as url:
        reply = await ask(url, CHAT, streamed())
    assert (reply.whole, tokens(reply), finish(reply)) == (True, 2, None)
    assert "[DONE]" not in reply.events


async def test_no_done_is_whole_but_for_done() -> None:
    spark = sim()
    spark.fault("no_done")
    async with spark.serve() as url:
        reply = await ask(url, CHAT, streamed())
    assert (reply.whole, finish(reply)) == (True, "stop")
    assert "[DONE]" not in reply.events


@pytest.mark.parametrize(("kind", "reason"), [("abort", "abort"), ("error_finish", "error")])
async def test_a_bad_finish_comes_with_status_200(kind: str, reason: str) -> None:
    spark = sim(reasoning_parser=None)
    spark.fault(kind, after=2)
    async with spark.serve() as url:
        reply, whole = await ask(url, CHAT, streamed()), await ask(url, CHAT, chat())
    assert (reply.status, finish(reply), tokens(reply)) == (200, reason, 2)
    assert whole.json["choices"][0]["finish_reason"] == reason
    assert whole.json["usage"]["completion_tokens"] == 2


# --- what the model says ---


@pytest.mark.parametrize("stream", [True, False])
async def test_leak_tools_puts_the_call_into_content(stream: bool) -> None:
    spark = sim()
    spark.fault("leak_tools")
    async with spark.serve() as url:
        reply = await ask(url, CHAT, chat("the weather?", stream=stream, tools=[WEATHER]))
    text = said(reply)["content"] if stream else reply.json["choices"][0]["message"]["content"]
    assert "<tool_call>" in text
    assert '"get_weather"' in text
    assert (finish(reply) if stream else reply.json["choices"][0]["finish_reason"]) == "stop"


async def test_leak_think_puts_thoughts_into_content() -> None:
    spark = sim()
    spark.fault("leak_think")
    async with spark.serve() as url:
        message = (await ask(url, CHAT, chat())).json["choices"][0]["message"]
    assert message["content"].startswith("<think>")
    assert "</think>" in message["content"]
    assert message["reasoning"] is None


async def test_empty_turn_has_thoughts_at_most() -> None:
    spark = sim()
    spark.fault("empty_turn")
    async with spark.serve() as url:
        choice = (await ask(url, CHAT, chat("the weather?", tools=[WEATHER]))).json["choices"][0]
    assert choice["message"]["reasoning"]
    assert not (choice["message"]["content"] or "").strip()
    assert "tool_calls" not in choice["message"]


async def test_a_wrong_parser_is_an_empty_200_with_tokens() -> None:
    spark = sim(tool_parser="qwen3_xml", reasoning_parser=None)
    spark.fault("wrong_parser")
    async with spark.serve() as url:
        whole = (await ask(url, CHAT, chat("the weather?", tools=[WEATHER]))).json
        reply = await ask(url, CHAT, streamed("the weather?", tools=[WEATHER]))
    assert whole["choices"][0]["message"]["content"] is None
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] > 10
    assert said(reply) == {}


async def test_garbage_is_exclamation_marks() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("garbage")
    async with spark.serve() as url:
        text = (await ask(url, CHAT, chat())).json["choices"][0]["message"]["content"]
    assert set(text) == {"!"}
    assert len(text) > 20


async def test_repetition_ends_with_its_own_reason() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("repetition")
    async with spark.serve() as url:
        reply = await ask(url, CHAT, streamed())
    assert finish(reply) == "repetition"
    assert set(said(reply)["content"].split()) == {"again"}


# --- how it is put on the wire ---


async def plain(url: str) -> Reply:
    return await ask(url, CHAT, streamed(), headers={"x-request-id": "same"})


def lines_of(body: bytes) -> list[bytes]:
    return [line for line in body.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data:")]


@pytest.mark.parametrize("kind", ["cut_chunks", "crlf", "comments", "gzip"])
async def test_a_wire_fault_changes_the_bytes_but_not_what_is_said(kind: str) -> None:
    spark = sim()
    async with spark.serve() as url:
        before = said(await plain(url))
        spark.fault(kind)
        reply = await plain(url)
    if kind == "gzip":
        assert reply.header("content-encoding") == "gzip"
        reply.body = gzip.decompress(reply.body)
    if kind == "crlf":
        assert b"\r\n\r\n" in reply.body
        assert b"\n\n" not in reply.body
        reply.body = reply.body.replace(b"\r\n", b"\n")
    if kind == "comments":
        assert reply.body.count(b": a comment\n") == reply.body.count(b"data:")
    assert said(reply) == before


async def test_cut_chunks_sends_pieces_of_the_given_sizes() -> None:
    spark = sim()
    spark.fault("cut_chunks", sizes=(2, 5))
    async with spark.serve() as url, connected(url) as conversation:
        await conversation.send("POST", CHAT, b'{"stream":true,"messages":[{"role":"user","content":"x"}]}', JSON)
        await conversation.read_until(b"\r\n\r\n")
        assert await conversation.read_until(b"2\r\nda\r\n5\r\nta: {\r\n")


async def test_gzip_is_flushed_event_by_event() -> None:
    spark = sim(reasoning_parser=None)
    spark.fault("gzip")
    spark.fault("hang_mid", after=1)
    async with spark.serve() as url, connected(url) as conversation:
        await conversation.send("POST", CHAT, b'{"stream":true,"messages":[{"role":"user","content":"x"}]}', JSON)
        await conversation.event()
        unpacked, text = zlib.decompressobj(wbits=31), b""
        async with asyncio.timeout(5):
            while text.count(b"\n\n") < 2:
                text += unpacked.decompress(bytes((await conversation.event()).data))
        assert b'"role":"assistant"' in text


async def test_multiline_breaks_an_event_over_two_data_lines() -> None:
    spark = sim()
    spark.fault("multiline")
    async with spark.serve() as url:
        body = (await plain(url)).body
    first = body.split(b"\n\n")[0].split(b"\n")
    assert len(first) == 2
    assert all(line.startswith(b"data: ") for line in first)


async def test_unasked_usage_is_a_chunk_without_choices() -> None:
    spark = sim()
    async with spark.serve() as url:
        assert all(e == "[DONE]" or e["choices"] for e in (await plain(url)).events)
        spark.fault("unasked_usage")
        assert (await plain(url)).events[-2]["choices"] == []
