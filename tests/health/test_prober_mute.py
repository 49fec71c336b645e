"""A server that drains takes connections and answers nothing new, its health check neither, while its streams go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.domain.health_state import State
from gateway.health import probe_client
from simulator import SimRustFrontEnd, SimVllm
from tests.one_backend import FAST
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway, running_gateway

CHAT = "/v1/chat/completions"
SOON = 8.0  # seconds


@pytest.fixture(autouse=True)
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_client, "PROBE_TIMEOUT", 0.3)


@asynccontextmanager
async def pair(one: SimVllm) -> AsyncIterator[tuple[RunningGateway, SimVllm]]:
    two = SimVllm("two")
    async with one.serve() as first, two.serve() as second:
        routes = f"{FAST}backends: {{a: {{url: '{first}'}}, b: {{url: '{second}'}}}}\naliases: {{chain: [a, b]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            yield gateway, two


def drain(sim: SimVllm) -> None:
    """From now on nothing new is answered; what has begun goes on."""
    sim.fault("hang_health")
    sim.fault("hang_before")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_request_without_a_byte_goes_elsewhere_and_a_stream_goes_on(stream: bool) -> None:
    one = SimRustFrontEnd("one", decode=40.0)
    async with pair(one) as (gateway, _), raw_client(gateway.url) as client:
        await client.post(CHAT, chat("chain", stream=True, max_tokens=400, ignore_eos=True))
        await client.until(b'"content":"')
        drain(one)
        async with asyncio.timeout(SOON):
            reply = await gateway.client.post(CHAT, json=chat("chain", stream=stream))
        assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "b")
        assert gateway.state("a") in (State.SUSPECT, State.DOWN)
        before = len(client.seen)
        await client.until(b'"content":"')
        assert len(client.seen) >= before
        assert b"stream_interrupted" not in client.seen
        for _ in range(3):  # the next requests are not sent there
            reply = await gateway.client.post(CHAT, json=chat("chain"))
            assert (reply.headers["x-gateway-backend"], "x-gateway-retries" in reply.headers) == ("b", False)


async def test_a_request_from_before_its_last_good_check_is_waited_for() -> None:
    one = SimRustFrontEnd("one")
    async with pair(one) as (gateway, _):
        state = gateway.gateway.fleet["a"]
        one.fault("slow", delay=2.0, count=1)
        request = asyncio.create_task(gateway.client.post(CHAT, json=chat("chain")))
        await one.wait_inflight(1)
        asked, alive = len(one.requests), state.evidence.alive_at
        await gateway.until(lambda: state.evidence.alive_at > alive)
        drain(one)
        async with asyncio.timeout(SOON):
            reply = await request
        assert (reply.headers["x-gateway-backend"], len(one.requests)) == ("a", asked)
        assert gateway.state("a") is not State.READY


async def test_another_server_that_is_busy_may_answer_late() -> None:
    one = SimVllm("one", decode=40.0)
    async with pair(one) as (gateway, _), raw_client(gateway.url) as client:
        await client.post(CHAT, chat("chain", stream=True, max_tokens=400, ignore_eos=True))
        await client.until(b'"content":"')
        one.fault("hang_health")
        before = one.seen["/health"]
        await gateway.until(lambda: one.seen["/health"] >= before + 3)
        assert gateway.state("a") is State.READY
