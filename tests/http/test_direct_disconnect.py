"""A client that leaves: its work upstream stops at once, everything taken is given back, nobody is blamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client.samples import Sample

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.listening import connections
from tests.raw_client import RawClient, chat, post_bytes, raw_client
from tests.support import RunningGateway, running_gateway

AT_ONCE = 0.5  # seconds within which the backend must see its connection closed
CHAT = "/v1/chat/completions"

Leave = Callable[[RawClient], None]
WAYS = {"closes": RawClient.close, "resets": RawClient.reset, "half-closes": RawClient.half_close}
every_way = pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS.keys())

# The fault that keeps the backend busy -> the bytes after which the client leaves (b"" = none came).
MOMENTS = {
    "before upstream's head": ("hang_before", True, b""),
    "after upstream's head, before content": ("hang_before_content", True, b""),
    "after the first content": ("hang_mid", True, b'"content":'),
    "while a whole answer is made": ("hang_before", False, b""),
    "while a whole answer is generated": ("hang_mid", False, b""),
}


@asynccontextmanager
async def one_backend(sim: SimVllm) -> AsyncIterator[RunningGateway]:
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}', slots: 64}}}}") as gateway:
        await gateway.until_ready("a")
        yield gateway


def gone(gateway: RunningGateway) -> float:
    return sum(s.value for s in samples(gateway, "gateway_requests_total") if s.labels["code"] == "client_gone")


def samples(gateway: RunningGateway, name: str) -> list[Sample]:
    return [s for family in gateway.gateway.metrics.registry.collect() for s in family.samples if s.name == name]


def uploading(gateway: RunningGateway) -> bool:
    """Has some request's head been read?"""
    return any(getattr(c, "cycle", None) is not None for c in gateway.server.server_state.connections)


def uploaded(gateway: RunningGateway) -> int:
    """Bytes of bodies that have arrived of requests that are not complete."""
    return sum(connection.received for connection in connections(gateway))


async def settled(gateway: RunningGateway, count: int = 1) -> None:
    """The slot is back, the request is counted once as the client's leaving, and the backend is not blamed."""
    await gateway.until(gateway.idle)
    assert gone(gateway) == count
    assert gateway.metric("gateway_attempts_total", backend="a", outcome="failed") == 0
    assert samples(gateway, "gateway_failovers_total") == []
    health = gateway.gateway.fleet["a"].health
    assert (health.state, health.fails, health.from_requests) == (State.READY, 0, False)


@every_way
@pytest.mark.parametrize(("fault", "stream", "mark"), MOMENTS.values(), ids=MOMENTS.keys())
async def test_a_leaving_client_stops_the_work_upstream(fault: str, stream: bool, mark: bytes, leave: Leave) -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        sim.fault(fault, after=3)
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat(stream=stream))
            if mark:
                await client.until(mark)
            await sim.wait_inflight(1)
            await sim.wait_for(lambda: sim.requests[-1].faults)
            assert gateway.gateway.fleet["a"].inflight == 1
            leave(client)
            await sim.wait_aborted(1, timeout=AT_ONCE)
        await settled(gateway)
        assert not sim.engine.busy


async def test_many_clients_that_leave_at_once_are_all_let_go() -> None:
    sim = SimVllm("a", slots=64)
    async with one_backend(sim) as gateway:
        sim.fault("hang_mid", after=2)
        async with asyncio.timeout(10):
            clients = [raw_client(gateway.url) for _ in range(60)]
            opened = [await c.__aenter__() for c in clients]
            for number, client in enumerate(opened):
                await client.post(CHAT, chat(stream=number % 2 == 0))
            await sim.wait_inflight(60)
            assert gateway.gateway.fleet["a"].inflight == 60
            for number, client in enumerate(opened):
                list(WAYS.values())[number % 3](client)
            await sim.wait_aborted(60, timeout=10)
            for c in clients:
                await c.__aexit__(None, None, None)
        await settled(gateway, 60)


@every_way
async def test_a_client_that_leaves_during_its_upload_never_reaches_a_backend(leave: Leave) -> None:
    sim = SimVllm("a")
    whole = post_bytes(CHAT, chat(said="x" * 300_000))
    async with one_backend(sim) as gateway:
        async with raw_client(gateway.url) as client:
            await client.send(whole[:200_000])
            await gateway.until(lambda: uploading(gateway))  # a reset may overtake what was not read
            leave(client)
            await gateway.until(lambda: gone(gateway) == 1)
        assert sim.requests == []
        await settled(gateway)


async def test_a_slow_upload_is_waited_for_and_served() -> None:
    sim = SimVllm("a")
    whole = post_bytes(CHAT, chat(said="12*17 " + "x" * 200_000))
    async with one_backend(sim) as gateway, raw_client(gateway.url) as client:
        head = whole.index(b"\r\n\r\n") + 4
        for end in range(50_000, len(whole), 50_000):  # the pieces arrive apart
            await client.send(whole[end - 50_000 : end])
            await gateway.until(lambda body=end - head: uploaded(gateway) == body)  # type: ignore[misc]  # binds it
        await client.send(whole[end:])
        status, body = await client.answer()
        assert status == 200
        assert b"204" in body


@every_way
async def test_a_client_that_leaves_after_a_slow_upload_is_noticed(leave: Leave) -> None:
    """Above 64 KiB of unread body the listener would stop reading and never see it."""
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        sim.fault("hang_before")
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat(said="x" * 300_000, stream=True))
            await sim.wait_inflight(1)
            leave(client)
            await sim.wait_aborted(1, timeout=AT_ONCE)
        await settled(gateway)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_connection_serves_the_next_request(stream: bool) -> None:
    """What watched the first request must not take the second one's end, nor the idle time, for a leaving."""
    sim = SimVllm("a")
    async with one_backend(sim) as gateway, raw_client(gateway.url) as client:
        for _ in range(3):
            await client.post(CHAT, chat(stream=stream))
            if stream:
                assert b"[DONE]" in await client.until(b"0\r\n\r\n")
            else:
                assert (await client.answer())[0] == 200
        client.close()
        await gateway.until(gateway.idle)
        assert (sim.aborted, gone(gateway)) == (0, 0)
        assert gateway.metric("gateway_requests_total", alias="a", backend="a", endpoint="chat", code="200") == 3


async def test_a_client_that_leaves_after_its_answer_is_not_counted_as_gone() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        for _ in range(20):
            async with raw_client(gateway.url) as client:
                await client.post(CHAT, chat(stream=True))
                await client.until(b"[DONE]")
                client.reset()
        await gateway.until(gateway.idle)
        assert (sim.aborted, gone(gateway)) == (0, 0)


async def test_a_client_that_leaves_does_not_make_the_gateway_ask_the_next_backend() -> None:
    first, second = SimVllm("a"), SimVllm("b")
    async with first.serve() as one, second.serve() as two:
        routes = f"backends: {{a: {{url: '{one}'}}, b: {{url: '{two}'}}}}\naliases: {{chain: [a, b]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            first.fault("hang_before")
            async with raw_client(gateway.url) as client:
                await client.post(CHAT, chat("chain", stream=True))
                await first.wait_inflight(1)
                client.close()
                await first.wait_aborted(1, timeout=AT_ONCE)
            await settled(gateway)
            assert second.requests == []
