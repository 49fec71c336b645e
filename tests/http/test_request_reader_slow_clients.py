"""Nobody holds a connection, a slot or the gateway's end by doing nothing, or by doing it slowly."""

from __future__ import annotations

import asyncio

import pytest

from simulator import SimVllm
from tests.listening import CHAT, HEALTH, LAST, chat_body, connections, later, limit, listening, request, statuses
from tests.raw_client import RawClient, chat, raw_client
from tests.support import PromptServer, RunningGateway, running_gateway
from tests.waiting import pace

POST = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n".encode()
MESSAGES = POST.replace(CHAT.encode(), b"/v1/messages")
COUNT = POST.replace(CHAT.encode(), b"/v1/messages/count_tokens")
CLOSED = "gateway_connections_closed_total"


async def arrived(gateway: RunningGateway, client: RawClient, sent: bytes) -> None:
    """Send it, and return when the gateway has read it."""
    before = len(gateway.server.listener.heads) + len(gateway.server.listener.bodies)
    if sent:
        await client.send(sent)
    await gateway.until(lambda: len(gateway.server.listener.heads) + len(gateway.server.listener.bodies) >= before)
    for _ in range(3):  # an answer on another connection: all that was sent before is read
        assert (await gateway.client.get("/version")).status_code == 200


# -- heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"G", HEALTH[:-2], HEALTH[:-1], POST[:30]])
async def test_a_connection_without_a_head_is_closed_after_10_s(sent: bytes) -> None:
    async with listening() as (gateway, _), raw_client(gateway.url) as client:
        await arrived(gateway, client, sent)
        later(gateway, 9)
        assert (await gateway.client.get("/health")).status_code == 200
        assert gateway.metric(CLOSED, reason="slow_head") == 0
        later(gateway, 10.1)
        assert await client.rest() == b""
        assert gateway.metric(CLOSED, reason="slow_head") == 1


async def test_the_timer_looks_by_itself() -> None:
    async with listening() as (gateway, _), raw_client(gateway.url) as client:
        limit(gateway, head=0.1)
        assert await client.rest() == b""


async def test_a_head_that_comes_in_drops_has_no_more_time() -> None:
    async with listening() as (gateway, _), raw_client(gateway.url) as client:
        limit(gateway, head=0.5)

        async def drip() -> None:
            while True:
                await client.send(b"x: y\r\n")
                await pace(0.05)

        await client.send(b"GET / HTTP/1.1\r\n")
        dripping = asyncio.create_task(drip())
        try:
            assert await client.rest() == b""
        except ConnectionError:
            pass  # reset while it was still dripping
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)


async def test_a_second_head_has_10_s_from_its_first_byte_and_idleness_75_s() -> None:
    async with listening() as (gateway, _), raw_client(gateway.url) as begun, raw_client(gateway.url) as idle:
        for client in (begun, idle):
            await client.send(HEALTH)
            assert (await client.answer())[0] == 200
        await arrived(gateway, begun, b"GET /hea")
        later(gateway, 10.1)
        assert await begun.rest() == b""
        later(gateway, 74)
        await idle.send(HEALTH)
        assert (await idle.answer())[0] == 200
        later(gateway, 75.1)
        assert await idle.rest() == b""


async def test_an_empty_line_is_no_request_and_gives_no_time() -> None:
    async with listening() as (gateway, _), raw_client(gateway.url) as client:
        await client.send(HEALTH)
        await client.answer()
        await arrived(gateway, client, b"\r\n")
        later(gateway, 75.1)
        assert await client.rest() == b""


async def test_a_long_answer_is_no_idleness() -> None:
    async with listening() as (gateway, sim), raw_client(gateway.url) as client:
        sim.fault("hang_mid", after=2)
        await client.post(CHAT, chat("chat", stream=True))
        await client.until(b'"content"')
        later(gateway, 1000)
        sim.clear()
        assert b"data: [DONE]" in await client.until(b"\r\n0\r\n\r\n")


# -- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head", [POST, COUNT, MESSAGES, POST.replace(b"content-length: 5000", b"transfer-encoding: chunked")]
)
async def test_a_body_that_does_not_come_is_a_408(head: bytes) -> None:
    async with listening() as (gateway, sim), raw_client(gateway.url) as client:
        await arrived(gateway, client, head)
        later(gateway, 29)
        later(gateway, 30.1)
        answer = await client.rest()
        assert statuses(answer) == [408]
        assert b'"request_timeout"' in answer
        assert b"connection: close\r\n" in answer
        assert gateway.metric(CLOSED, reason="slow_body") == 1
        assert not sim.requests


async def test_the_408_of_messages_is_anthropics() -> None:
    async with listening() as (gateway, _), raw_client(gateway.url) as client:
        await arrived(gateway, client, MESSAGES)
        later(gateway, 30.1)
        assert b'{"type":"error","error":{"type":' in await client.rest()


async def test_a_body_at_the_rate_is_read_to_its_end() -> None:
    async with listening() as (gateway, sim), raw_client(gateway.url) as client:
        limit(gateway, body_rate=10)
        sent = request("POST", CHAT, chat_body(user="x" * 2000))
        await arrived(gateway, client, sent[:100])
        for at, seconds in ((100, 30), (500, 60), (900, 90)):
            await client.send(sent[at : at + 400])
            await gateway.until(lambda: read_of(gateway) > at + 200)  # noqa: B023
            later(gateway, seconds + 0.1)
        await client.send(sent[1300:])
        assert (await client.answer())[0] == 200
        assert len(sim.requests) == 1


def read_of(gateway: RunningGateway) -> int:
    return sum(c.received for c in connections(gateway) if c in gateway.server.listener.bodies)


async def test_a_dripped_body_is_a_408_however_evenly_it_drips() -> None:
    async with listening() as (gateway, _), raw_client(gateway.url) as client:
        limit(gateway, body_window=0.6)
        await client.send(POST)
        for _ in range(40):
            try:
                await client.send(b"x")
            except ConnectionError:
                break
            await pace(0.05)
        assert statuses(await client.rest()) == [408]


# -- who leaves, and who sends ahead -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [HEALTH, POST, HEALTH * 40, b"G", request("POST", CHAT, chat_body())])
async def test_a_client_that_pipelines_and_leaves_gives_its_slot_back(ahead: bytes) -> None:
    async with listening() as (gateway, sim):
        sim.fault("hang_before", count=1)
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("chat"))
            await sim.wait_inflight(1)
            await client.send(ahead)
        await sim.wait_aborted(1)
        await gateway.until(gateway.idle)


async def test_a_waiting_client_that_pipelines_and_leaves_gives_its_place_back() -> None:
    sim = SimVllm(name="a", served=["m"], context=32768, slots=1)
    async with (
        sim.serve(port=0) as url,
        running_gateway(f"backends: {{chat: {{url: '{url}', slots: 1}}}}") as gateway,
        raw_client(gateway.url) as running,
    ):
        await gateway.until_ready("chat")
        sim.fault("hang_before", count=1)
        await running.post(CHAT, chat("chat"))
        await sim.wait_inflight(1)
        async with raw_client(gateway.url) as waiting:
            await waiting.post(CHAT, chat("chat"))
            await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="chat") == 1)
            await waiting.send(HEALTH * 3)
        await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="chat") == 0)
        running.close()


async def test_one_who_sends_more_ahead_than_is_kept_is_still_seen_to_leave() -> None:
    async with listening() as (gateway, sim):
        limit(gateway, ahead_for=0.0, ahead_longest=0.0)
        sim.fault("hang_before", count=1)
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("chat"))
            await sim.wait_inflight(1)
            for _ in range(60):
                await client.send(HEALTH * 2000)
            [held] = [len(c._pipelined) for c in connections(gateway) if c.is_answering()]
            assert held < 1_000_000
        await sim.wait_aborted(1)


async def test_a_long_request_behind_a_slow_one_is_answered_and_its_client_seen_to_leave() -> None:
    async with listening(server="shutdown: 60s") as (gateway, sim):
        long = request("POST", "/nowhere", b"x" * 200_000)
        for leaves in (False, True):
            sim.fault("hang_before", count=1)
            async with raw_client(gateway.url) as client:
                await client.post(CHAT, chat("chat"))
                await sim.wait_inflight(1)
                await client.send(long + LAST)
                await gateway.until(lambda: bool(gateway.server.listener.crowded))
                later(gateway, 1.1)
                [connection] = [c for c in connections(gateway) if c.is_answering()]
                await gateway.until(lambda: len(connection._pipelined) >= len(long))  # noqa: B023
                later(gateway, 40)
                if not leaves:
                    sim.clear()
                    found = statuses(await client.rest())
                    assert found[:2] == [200, 404]
            if leaves:
                await sim.wait_aborted(1)
            await gateway.until(gateway.idle)
        assert not gateway.server.listener.deep


async def test_many_pipelined_requests_are_all_answered_and_few_kept() -> None:
    count = 3000
    async with listening() as (gateway, _), raw_client(gateway.url) as client:
        most = 0

        async def send() -> None:
            for _ in range(count // 100):
                await client.send(b"GET /nowhere HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"y" * 100) * 100)
            await client.send(LAST)

        sending = asyncio.create_task(send())
        answers = 0
        while data := await client.reader.read(1 << 20):
            answers += data.count(b"HTTP/1.1 ")
            most = max([most, *(len(c._pipelined) for c in connections(gateway))])
        await sending
        assert answers == count + 1
        assert most < 64 * 1024 + 256 * 1024  # what is kept, and one read


# -- the end ---------------------------------------------------------------------------------------------------------


async def stopped(gateway: RunningGateway) -> float:
    """Seconds that the server's own shutdown takes."""
    began = asyncio.get_running_loop().time()
    assert isinstance(gateway.server, PromptServer)
    gateway.server.stop()
    await gateway.until(lambda: not gateway.server.server_state.connections)
    return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize("sent", [b"", b"GET", POST, POST + b"xxx", COUNT, HEALTH[:-1]])
async def test_what_is_not_here_whole_does_not_hold_up_the_end(sent: bytes) -> None:
    async with listening(server="shutdown: 60s") as (gateway, _), raw_client(gateway.url) as client:
        await arrived(gateway, client, sent)
        await gateway.client.aclose()
        assert await stopped(gateway) < 3
        answer = await client.rest()
        assert statuses(answer) == ([503] if sent.startswith(b"POST") else [])


async def test_what_comes_whole_within_a_second_of_the_end_is_answered() -> None:
    async with listening(server="shutdown: 60s") as (gateway, _), raw_client(gateway.url) as client:
        sent = request("POST", CHAT, chat_body())
        await arrived(gateway, client, sent[:-20])
        stopping = asyncio.create_task(stopped(gateway))
        await gateway.until(lambda: gateway.server.listener.stopping)
        await client.send(sent[-20:])
        answer = await client.rest()
        assert statuses(answer) == [200]
        assert b"connection: close\r\n" in answer
        await stopping


async def test_an_answer_that_nobody_reads_ends_with_the_time_that_requests_have() -> None:
    async with (
        listening(server="shutdown: 300ms") as (gateway, _),
        raw_client(gateway.url, receive_buffer=4096) as client,
    ):
        await client.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 400)
        opened = gateway.server.listener.connections
        await gateway.until(lambda: any(c.transport.get_write_buffer_size() for c in opened))
        await gateway.client.aclose()
        assert await stopped(gateway) < 4
