"""A backend that stops without ending its connections: its port refuses, its sockets stay open and say nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway, running_gateway

FAST = "defaults: {health: {every: 50ms, fail_after: 3, recover_after: 2}}\n"
SOON = 5.0  # seconds; the silence budgets themselves are a minute and more


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[RunningGateway, SimVllm, SimVllm]]:
    one, two = SimVllm("one"), SimVllm("two")
    async with one.serve() as first, two.serve() as second:
        routes = (
            f"{FAST}backends: {{one: {{url: '{first}'}}, two: {{url: '{second}'}}}}\naliases: {{chain: [one, two]}}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("one", "two")
            yield gateway, one, two


async def test_a_stream_under_way_is_ended_and_told_so() -> None:
    async with pair() as (gateway, one, _), raw_client(gateway.url) as client:
        one.fault("hang_mid", after=2)
        await client.post("/v1/chat/completions", chat("chain", stream=True))
        await client.until(b'"content":"')
        one.fault("refuse")
        async with asyncio.timeout(SOON):
            await client.rest()
        assert b'"code":"stream_interrupted"' in client.seen
        assert not client.seen.endswith(b"0\r\n\r\n")
        assert gateway.state("one") is State.DOWN


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_request_that_waits_there_goes_on_elsewhere(stream: bool) -> None:
    async with pair() as (gateway, one, _):
        one.fault("hang_before")
        asking = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=chat("chain", stream=stream)))
        await one.wait_inflight(1)
        one.fault("refuse")
        async with asyncio.timeout(SOON):
            reply = await asking
        assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "two")


async def test_a_stream_that_still_moves_is_left_to_end() -> None:
    """A server that closes its port first and then ends what runs."""
    sim = SimVllm("one", decode=100.0)
    async with sim.serve() as url, running_gateway(f"{FAST}backends: {{one: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("one")
        async with raw_client(gateway.url) as client:
            await client.post("/v1/chat/completions", chat("one", "Say 200 words", stream=True, max_tokens=120))
            await client.until(b'"content":"')
            sim.fault("refuse")
            await gateway.until(lambda: gateway.state("one") is State.DOWN)
            await client.until(b"0\r\n\r\n")
            assert b"data: [DONE]" in client.seen
            assert b"stream_interrupted" not in client.seen
