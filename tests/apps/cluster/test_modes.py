"""The mode in force is one for all gateways: chosen at any of them, known to those that start later."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.apps.cluster.joined import FAST, one_more, until_joined
from tests.apps.cluster.redis_server import RedisServer
from tests.support import RunningGateway, running_gateway

MODES = "modes: {daily: [a], large: [b], third: []}\n"


def routes_of(url: str, modes: str = MODES) -> str:
    return f"{FAST}backends: {{a: {{url: '{url}'}}, b: {{url: '{url}/b'}}}}\n{modes}"


def mode(gateway: RunningGateway) -> str | None:
    return gateway.gateway.snapshot.mode


async def choose(gateway: RunningGateway, name: str) -> None:
    await gateway.gateway.put_mode_in_force(name)


async def test_a_mode_that_one_gateway_chooses_is_in_force_at_all(redis: RedisServer) -> None:
    async with SimVllm("a").serve() as url, AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(one_more(redis, routes_of(url), n)) for n in (1, 2)]
        await choose(one, "large")
        await other.until(lambda: mode(other) == "large")
        assert other.state("a") is State.PARKED
        reasons = [event.reason for event in other.gateway.events if event.kind == "mode"]
        assert reasons == ["chosen at another gateway"]
        await choose(other, "daily")
        await one.until(lambda: mode(one) == "daily")
        await choose(one, "third")
        await other.until(lambda: mode(other) == "third")
        later = await stack.enter_async_context(one_more(redis, routes_of(url), 3))
        assert mode(later) == "third", "from its start"


async def test_the_later_of_two_choices_counts_after_a_time_without_redis(own_redis: RedisServer) -> None:
    async with SimVllm("a").serve() as url, AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(one_more(own_redis, routes_of(url), n)) for n in (1, 2)]
        own_redis.kill()
        for gateway in (one, other):
            await until_joined(gateway, False)
        await choose(one, "large")
        await choose(other, "third")
        assert (mode(one), mode(other)) == ("large", "third"), "each on its own"
        own_redis.start()
        await one.until(lambda: mode(one) == "third")
        assert mode(other) == "third"


async def test_a_choice_from_before_the_start_is_brought_to_the_others(own_redis: RedisServer, tmp_path: Path) -> None:
    async with SimVllm("a").serve() as url, AsyncExitStack() as stack:
        server = f"server: {{shared: '{own_redis.url}?socket_timeout=2', data: '{tmp_path}'}}\n"
        async with running_gateway(server + routes_of(url)) as gateway:
            await choose(gateway, "large")
        own_redis.kill()
        own_redis.start()
        other = await stack.enter_async_context(one_more(own_redis, routes_of(url), 1))
        assert mode(other) == "daily", "Redis has lost everything, and it never knew"
        again = await stack.enter_async_context(running_gateway(server + routes_of(url)))
        assert mode(again) == "large"
        await other.until(lambda: mode(other) == "large")


async def test_a_mode_that_only_the_other_file_has_leaves_the_first_one_in_force(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with SimVllm("a").serve() as url, AsyncExitStack() as stack:
        one = await stack.enter_async_context(one_more(redis, routes_of(url), 1))
        older = routes_of(url, "modes: {daily: [a], third: [b]}\n")
        other = await stack.enter_async_context(one_more(redis, older, 2))
        await choose(other, "third")
        await one.until(lambda: mode(one) == "third")
        await choose(one, "large")
        await other.until(lambda: mode(other) == "daily")
    assert "has no mode 'large': the first one, 'daily', is in force" in caplog.text


async def test_a_drain_of_a_parked_backend_is_known_to_all(redis: RedisServer) -> None:
    async with SimVllm("a").serve() as url, AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(one_more(redis, routes_of(url), n)) for n in (1, 2)]
        await choose(one, "third")
        await other.until(lambda: mode(other) == "third")
        await one.client.post("/admin/backends/a/drain")
        await other.until(lambda: other.gateway.fleet["a"].health.drained)
        await choose(other, "daily")
        await one.until(lambda: one.state("a") is State.DRAINING)
        assert other.state("a") is State.DRAINING
        await other.client.post("/admin/backends/a/resume")
        await one.until_ready("a")
