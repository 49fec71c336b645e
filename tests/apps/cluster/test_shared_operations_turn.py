"""Backends that requests start, in front of several gateways: one starts it, the others see it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from gateway.domain.health_state import State
from tests.apps.cluster.joined import ask, one_more, until_joined
from tests.apps.cluster.office import MadeUp, Place
from tests.apps.cluster.redis_server import RedisServer
from tests.apps.control.machine import FAST, machine
from tests.apps.control.requested import CALLED


async def test_two_gateways_start_it_once_and_both_answer(redis: RedisServer, tmp_path: Path) -> None:
    async with machine(tmp_path, away="a") as there, AsyncExitStack() as stack:
        routes = f"{FAST}backends:\n{there.backend('a', CALLED)}"
        one, other = [await stack.enter_async_context(one_more(redis, routes, n)) for n in (1, 2)]
        for gateway in (one, other):
            await gateway.until(lambda g=gateway: g.state("a") is State.PARKED)  # type: ignore[misc]  # binds the name
        there.faults["start a"] = "hang"
        asked = [asyncio.create_task(ask(gateway)) for gateway in (one, other)]
        await there.until_asked("start a")
        await one.until(lambda: one.state("a") is other.state("a") is State.WARMING)
        there.go_on()
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200]
        for gateway in (one, other):
            await gateway.until(lambda g=gateway: not g.gateway.apps.control.starter.is_busy)  # type: ignore[misc]  # binds the name
        assert there.orders == ["start a"]


async def test_without_redis_each_goes_on_alone(own_redis: RedisServer, tmp_path: Path) -> None:
    async with machine(tmp_path, away="a") as there, AsyncExitStack() as stack:
        routes = f"{FAST}backends:\n{there.backend('a', CALLED)}"
        gateway = await stack.enter_async_context(one_more(own_redis, routes, 1))
        await gateway.until(lambda: gateway.state("a") is State.PARKED)
        own_redis.kill()
        await until_joined(gateway, False)
        assert (await ask(gateway)).status_code == 200


def test_a_turn_is_one_gateways_until_it_gives_it_back_or_is_gone(place: Place, three: list[MadeUp]) -> None:
    one, other, third = (gateway.name for gateway in three)
    assert place.run(one, ("take", 10_000)) == [[one]]
    assert place.run(other, ("take", 10_000)) == [[one]]
    assert place.run(one, ("take", 10_000)) == [[one]], "renewed"
    place.run(other, ("give",))
    assert place.run(other, ("take", 10_000)) == [[one]], "only its own is given back"
    place.run(one, ("give",))
    assert place.run(other, ("take", 10_000)) == [[other]]
    place.now += 5
    place.run(third, ("news", 0))
    place.now += 5
    assert place.run(third, ("take", 10_000)) == [[third]], "the other one has not been heard of for 10 s"
