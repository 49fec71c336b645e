"""What one gateway knows of a backend, all know."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.domain import progress
from gateway.domain.health_state import State
from gateway.health import engine_look
from simulator import SimVllm
from tests.apps.cluster.joined import CHAT, FAST, TOOLS, ask, gateways, one_more
from tests.apps.cluster.redis_server import RedisServer
from tests.raw_client import chat, raw_client


async def test_a_drain_at_one_is_a_drain_at_all_until_it_is_resumed(redis: RedisServer) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, AsyncExitStack() as stack:
        routes = f"{FAST}backends: {{a: {{url: '{url}'}}}}"
        one, two = await stack.enter_async_context(gateways(redis, routes))
        assert (await one.client.post("/admin/backends/a/drain")).status_code == 200
        await two.until(lambda: two.state("a") is State.DRAINING)
        new = await stack.enter_async_context(one_more(redis, routes, 3))
        assert new.state("a") is State.DRAINING, "before its first request"
        assert (await ask(new)).status_code == 503
        assert (await two.client.post("/admin/backends/a/resume")).status_code == 200
        for gateway in (one, new):
            await gateway.until_ready("a")


async def test_a_hung_engine_that_one_has_found_is_left_by_all(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SILENCE_LEAST", 0.5)
    monkeypatch.setattr(engine_look, "MOVING", 0.05)
    a, b = SimVllm("a"), SimVllm("b")
    async with a.serve() as one_url, b.serve() as two_url:
        backends = f"backends: {{a: {{url: '{one_url}'}}, b: {{url: '{two_url}'}}}}"
        async with gateways(redis, f"{FAST}{backends}\naliases: {{chain: [a, b]}}") as (one, two):

            async def blind(*_: Any) -> None:
                """It cannot see for itself."""

            monkeypatch.setattr(two.gateway.prober, "look_at_engine", blind)
            async with raw_client(two.url) as client:
                a.fault("hang_mid", after=2, count=1)
                await client.post(CHAT, chat("chain", "9 words", stream=True))
                await client.until(b'"content":"')
                a.fault("hang_engine")
                answer = await ask(one, "chain")
                assert answer.headers["x-gateway-backend"] == "b"
                await client.rest()
                assert b'"code":"stream_interrupted"' in client.seen
            health = two.gateway.fleet["a"].health
            assert health.state is State.DOWN
            assert "stood still" in health.reason
            assert "found by another gateway" in health.reason
            assert (await ask(two, "chain")).headers["x-gateway-backend"] == "b"


async def test_a_refusal_teaches_all_gateways_and_those_that_come_later(redis: RedisServer) -> None:
    a, b = SimVllm("a", tool_parser=None), SimVllm("b")
    async with a.serve() as one_url, b.serve() as two_url, AsyncExitStack() as stack:
        backends = f"backends: {{a: {{url: '{one_url}'}}, b: {{url: '{two_url}'}}}}"
        routes = f"{backends}\naliases: {{chain: [a, b]}}"
        one, two = await stack.enter_async_context(gateways(redis, routes))
        assert (await ask(one, "chain", tools=TOOLS)).headers["x-gateway-attempts"] == "2"
        await two.until(lambda: bool(two.gateway.fleet["a"].facts.lacks))
        new = await stack.enter_async_context(one_more(redis, routes, 3))
        await new.until(lambda: bool(new.gateway.fleet["a"].facts.lacks))
        for gateway in (two, new):
            assert (await ask(gateway, "chain", tools=TOOLS)).headers["x-gateway-attempts"] == "1"
        assert len(a.requests) == 1
        one.gateway.fleet["a"].start_over()  # as a probe does
        for gateway in (two, new):
            await gateway.until(lambda g=gateway: not g.gateway.fleet["a"].facts.lacks)  # type: ignore[misc]  # binds the name


async def test_what_was_learned_of_another_engine_is_not_believed(redis: RedisServer) -> None:
    async with SimVllm("a").serve() as url, gateways(redis, f"backends: {{a: {{url: '{url}'}}}}") as (one, two):
        theirs, ours = one.gateway.fleet["a"], two.gateway.fleet["a"]
        theirs.reported = theirs.reported._replace(version="another")
        theirs.facts.learn_lack("tools", asyncio.get_running_loop().time())
        theirs.reported = ours.reported
        theirs.facts.learn_lack("images", asyncio.get_running_loop().time())
        await two.until(lambda: bool(ours.facts.lacks))
        assert set(ours.facts.lacks) == {"images"}


async def test_one_canary_serves_all_gateways(redis: RedisServer) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, AsyncExitStack() as stack:
        routes = f"defaults: {{health: {{every: 100ms, canary: 10m}}}}\nbackends: {{a: {{url: '{url}'}}}}"
        one = await stack.enter_async_context(one_more(redis, routes, 1))
        await one.until(lambda: "tool_auto" in one.gateway.fleet["a"].facts.observed)
        asked = len(sim.requests)
        two = await stack.enter_async_context(one_more(redis, routes, 2))
        await two.until(lambda: "tool_auto" in two.gateway.fleet["a"].facts.observed)
        checked = sim.seen["/health"]
        await two.until(lambda: sim.seen["/health"] > checked + 8)  # it has been looked at a few times
        assert len(sim.requests) == asked
