"""Starting, stopping, leaving: what a simulated backend looks like from outside while it lives and dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import pytest

from simulator import SimVllm
from simulator.control import Control
from simulator.server import SimServer
from tests.simulator.wire import ask, chat, connected, load, masked, said

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
LONG = b'{"stream":true,"messages":[{"role":"user","content":"write 5000 words"}]}'


async def test_a_client_that_leaves_a_stream_frees_its_slot_at_once() -> None:
    sim = SimVllm(slots=1, decode=50, tool_parser=None)
    async with sim.serve() as url:
        async with connected(url) as conversation:
            await conversation.send("POST", CHAT, LONG, JSON)
            await conversation.read_until(b"\n\n")
            assert (sim.inflight, len(sim.engine.running)) == (1, 1)
        await sim.wait_aborted(1, timeout=5)
        assert not sim.engine.running
        await sim.wait_inflight(0)
        assert sim.requests[-1].aborted
        assert sim.engine.counters.finished["abort"] == 1


async def test_a_client_that_leaves_before_the_answer_is_noticed_too() -> None:
    sim = SimVllm(slots=1, decode=10, tool_parser=None)
    async with sim.serve() as url:
        asking = asyncio.create_task(ask(url, CHAT, chat("write 500 words")))
        await sim.wait_for(lambda: sim.engine.running)
        asking.cancel()
        await sim.wait_aborted(1, timeout=5)
        assert not sim.engine.running


async def test_a_waiting_request_gets_the_slot_of_one_that_left() -> None:
    sim = SimVllm(slots=1, decode=50, tool_parser=None)
    async with sim.serve() as url, connected(url) as first:
        await first.send("POST", CHAT, LONG, JSON)
        await first.read_until(b"\n\n")
        second = asyncio.create_task(ask(url, CHAT, chat("12*17", max_tokens=2)))
        await sim.wait_for(lambda: sim.engine.waiting)
        first.writer.transport.abort()
        assert (await second).status == 200
        assert sim.aborted == 1


async def test_a_queued_stream_gets_comments_before_its_role_chunk() -> None:
    sim = SimVllm(slots=1, decode=50, tool_parser=None, keep_alive=0.02)
    async with sim.serve() as url, connected(url) as first, connected(url) as second:
        await first.send("POST", CHAT, LONG, JSON)
        await first.read_until(b"\n\n")
        await second.send("POST", CHAT, LONG, JSON)
        assert (await second.read_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        assert await second.read_until(b": keep-alive\n\n\r\n")
        assert await second.read_until(b": keep-alive\n\n\r\n")


async def test_kill_resets_what_is_in_flight_and_revive_is_a_fresh_process() -> None:
    sim = SimVllm(decode=50, tool_parser=None)
    async with sim.serve() as url:
        await ask(url, CHAT, chat("12*17", max_tokens=1))
        async with connected(url) as conversation:
            await conversation.send("POST", CHAT, LONG, JSON)
            await conversation.read_until(b"\n\n")
            started = sim.started_at
            await sim.kill()
            with pytest.raises(ConnectionResetError):
                await conversation.reader.read()
        with pytest.raises(ConnectionRefusedError):
            await ask(url, "/health")
        assert sim.aborted == 0, "nobody left by himself"
        await sim.revive()
        assert (await ask(url, "/health")).status == 200
        assert sim.engine.counters.generation_tokens == 0
        assert sim.started_at > started


async def test_terminate_ends_streams_with_abort_and_then_refuses() -> None:
    sim = SimVllm(decode=50, tool_parser=None)
    async with sim.serve() as url:
        streaming = asyncio.create_task(ask(url, CHAT, chat("write 5000 words", stream=True)))
        whole = asyncio.create_task(ask(url, CHAT, chat("write 5000 words")))
        await sim.wait_for(lambda: sum(s.made > 1 for s in sim.engine.running) == 2)
        await sim.terminate()
        reply = await streaming
        assert (reply.status, reply.whole) == (200, True)
        assert reply.events[-2]["choices"][0]["finish_reason"] == "abort"
        assert reply.events[-1] == "[DONE]"
        assert said(reply)["content"].startswith("and the light")
        assert (await whole).json["choices"][0]["finish_reason"] == "abort"
        with pytest.raises(ConnectionRefusedError):
            await ask(url, "/health")


async def test_idle_connections_are_closed_when_the_port_refuses() -> None:
    sim = SimVllm()
    async with sim.serve() as url, connected(url) as conversation:
        await conversation.send("GET", "/health", None, {})
        await conversation.reply()
        sim.fault("refuse")
        assert await asyncio.wait_for(conversation.reader.read(), 2) == b""


async def test_a_stream_in_flight_survives_a_refusing_port() -> None:
    sim = SimVllm(decode=500, tool_parser=None)
    async with sim.serve() as url:
        streaming = asyncio.create_task(ask(url, CHAT, chat("write 60 words", stream=True)))
        await sim.wait_for(lambda: sim.engine.running)
        sim.fault("refuse")
        assert (await streaming).events[-1] == "[DONE]"


async def test_the_port_is_kept_while_nothing_listens_on_it() -> None:
    sim = SimVllm()
    async with sim.serve() as url:
        for _ in range(3):
            await sim.kill()
            await sim.revive()
            assert sim.url == url
            assert (await ask(url, "/health")).status == 200


async def test_a_port_of_somebody_else_is_an_error() -> None:
    first, second = SimVllm("first"), SimVllm("second")
    async with first.serve() as url:
        with pytest.raises(OSError, match="in use"):
            await second.start(int(url.rpartition(":")[2]))


async def test_many_backends_are_steered_on_one_control_port() -> None:
    one, two = SimVllm("one"), SimVllm("two")
    async with one.serve() as url, two.serve(), SimServer(Control({"one": one, "two": two})) as control:
        assert list((await ask(control.url, "/_sim")).json) == ["one", "two"]
        await ask(control.url, "/_sim/one/fault", {"kind": "refuse"})
        with pytest.raises(ConnectionRefusedError):
            await ask(url, "/health")
        await ask(control.url, "/_sim/one/fault", method="DELETE")
        assert (await ask(url, "/health")).status == 200
        await ask(control.url, "/_sim/two/kill", b"", "POST")
        assert not (await ask(control.url, "/_sim/two")).json["alive"]
        await ask(control.url, "/_sim/two/start", b"", "POST")
        assert (await ask(two.url, "/health")).status == 200
        assert (await ask(control.url, "/_sim/nobody")).status == 404


async def test_waiting_in_vain_tells_the_state() -> None:
    sim = SimVllm("spark")
    async with sim.serve():
        with pytest.raises(TimeoutError, match=r"'spark' after 0.01 s.*'inflight': 0"):
            await sim.wait_for(lambda: sim.inflight == 7, timeout=0.01)


async def test_probes_are_counted_apart_from_requests() -> None:
    sim = SimVllm()
    async with sim.serve() as url:
        await ask(url, "/health")
        await ask(url, "/_sim")
        await ask(url, CHAT, chat(), headers={"X-Test": "yes"})
    assert sim.seen == {"/health": 1, CHAT: 1}
    assert [r.path for r in sim.requests] == [CHAT]
    assert sim.requests[0].headers["x-test"] == "yes"
    assert sim.requests[0].json == chat()
    assert (sim.requests[0].status, sim.requests[0].done) == (200, True)


async def test_a_connection_is_used_again() -> None:
    sim = SimVllm()
    async with sim.serve() as url, connected(url) as conversation:
        for _ in range(3):
            await conversation.send("POST", CHAT, b'{"messages":[{"role":"user","content":"x"}]}', JSON)
            assert (await conversation.reply()).status == 200
            conversation.state.start_next_cycle()


async def test_the_command_serves_until_sigterm() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from gateway.apps.demo.sim import command; command()",
        *("vllm", "--port", "0", "--model", "tiny", "--tool-parser", "none"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        url = line.split()[2]
        assert (await ask(url, "/v1/models")).json["data"][0]["id"] == "tiny"
        os.kill(process.pid, signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def test_a_sigtermed_answer_looks_like_the_real_one() -> None:
    real = load("chat_nonstream_script").reply.json
    sim = SimVllm(served=["tiny"], decode=50, tool_parser=None)
    async with sim.serve() as url:
        asking = asyncio.create_task(ask(url, CHAT, chat("write 5000 words")))
        await sim.wait_for(lambda: sim.engine.running)
        await sim.terminate()
        ours = (await asking).json
    ours["choices"][0]["finish_reason"] = "stop"
    assert masked(ours, texts=True) == masked(real, texts=True)
