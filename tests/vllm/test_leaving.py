"""Clients that leave a real vLLM's work, and connections that its keep-alive timer closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from gateway.domain.health_state import State
from gateway.transport.h1 import H1Client
from tests.raw_client import RawClient, raw_client
from tests.support import RunningGateway, running_gateway
from tests.waiting import pace

from .asks import CHAT, chat, long_chat, script
from .servers import VllmServer
from .wiretap import wiretap

AT_ONCE = 0.5  # seconds from a client's leaving to an idle engine
KEEP_ALIVE = 5.0  # seconds after which vLLM closes an idle connection
WAYS = {"closes": RawClient.close, "resets": RawClient.reset, "half-closes": RawClient.half_close}


@pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_engine_is_idle_soon_after_the_client_left(
    plain: VllmServer, http: httpx.AsyncClient, stream: bool, leave: Callable[[RawClient], None]
) -> None:
    async with running_gateway(f"backends: {{{plain.routes('front')}}}") as gateway:
        await gateway.until_ready("front")
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, long_chat(8000, stream=stream))
            if stream:
                await client.until(b'"content":"')
            await plain.until_running(http, 1)
            leave(client)
            await plain.until_running(http, 0, within=AT_ONCE)
        health = gateway.gateway.fleet["front"].health
        assert (health.state, health.fails) == (State.READY, 0)


async def test_a_client_that_leaves_while_vllm_queues_its_request_is_taken_out_of_the_queue(
    plain: VllmServer, http: httpx.AsyncClient
) -> None:
    """Eight run at a time there; the ninth is told `: keep-alive` until one of them ends."""

    async with running_gateway(f"backends: {{{plain.routes('front', slots='32')}}}") as gateway:
        await gateway.until_ready("front")
        async with asyncio.TaskGroup() as tasks:
            eight = [tasks.create_task(gateway.client.post(CHAT, json=long_chat(8000))) for _ in range(8)]
            await plain.until_running(http, 8)
            async with raw_client(gateway.url) as ninth:
                await ninth.post(CHAT, long_chat(8000, stream=True))
                await plain.until_running(http, 9)
                ninth.close()
                await plain.until_running(http, 8, within=AT_ONCE)
            for task in eight:
                task.cancel()
        await plain.until_running(http, 0, within=2 * AT_ONCE)


async def served(gateway: RunningGateway, delay: float = 0.0) -> None:
    await pace(delay)  # the keep-alive of vLLM is real time
    answer = await gateway.client.post(CHAT, json=chat(**script("Hello")))
    assert (answer.status_code, answer.headers["x-gateway-attempts"]) == (200, "1")


async def test_a_pooled_connection_is_used_again_but_never_when_vllm_may_be_closing_it(tools: VllmServer) -> None:
    async with wiretap(tools.url) as tap, running_gateway(f"backends: {{front: {{url: '{tap.url}'}}}}") as gateway:
        await gateway.until_ready("front")

        def posts() -> list[int]:
            return [exchange.asked.count(b"POST /") for exchange in tap.posts()]

        await served(gateway)
        await served(gateway)
        assert posts() == [2]
        await served(gateway, delay=KEEP_ALIVE + 0.5)
        assert posts() == [2, 1]


@pytest.mark.parametrize("max_idle", [None, 60.0], ids=["as shipped", "with a pool that keeps them too long"])
async def test_a_burst_when_vllm_has_just_closed_every_connection_fails_for_nobody(
    tools: VllmServer, max_idle: float | None
) -> None:
    """The news of it is still on its way. In the second case there is no guard but the one retry of a reused connection
    that died without a byte."""
    async with wiretap(tools.url) as tap:
        async with running_gateway(f"backends: {{front: {{url: '{tap.url}', slots: 32}}}}") as gateway:
            await gateway.until_ready("front")
            state = gateway.gateway.fleet["front"]
            assert isinstance(state.client, H1Client)
            if max_idle is not None:
                state.client._max_idle = max_idle
            await asyncio.gather(*(served(gateway) for _ in range(20)))
            tap.tell.clear()
            await gateway.until(lambda: all(exchange.ended for exchange in tap.posts()))
            burst = [asyncio.create_task(served(gateway)) for _ in range(20)]
            await gateway.until(lambda: state.inflight == 20 or all(task.done() for task in burst))
            tap.tell.set()
            await asyncio.gather(*burst)
            assert state.health.fails == 0
        lost = sum(e.asked.count(b"POST /") - e.answered.count(b"HTTP/1.1 200") for e in tap.posts())
        assert (lost > 0) == (max_idle is not None)
