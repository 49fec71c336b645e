"""Redis that dies, freezes, comes back, or is not there at first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.apps.cluster.joined import FAST, Counting, ask, gateways, shared, slots_of, until_joined
from tests.apps.cluster.redis_server import RedisServer
from tests.support import RunningGateway, running_gateway


async def crowd(found: list[RunningGateway], until: Callable[[], bool], at_a_time: int) -> list[int]:
    """So many clients at each gateway that ask again and again; the statuses of all answers."""
    statuses: list[int] = []

    async def client(gateway: RunningGateway) -> None:
        while not until():
            statuses.append((await ask(gateway, said="5 words", stream=len(statuses) % 2 == 0)).status_code)

    await asyncio.gather(*(client(gateway) for gateway in found for _ in range(at_a_time)))
    return statuses


async def test_when_redis_dies_and_comes_back_no_request_fails_and_slots_are_kept(own_redis: RedisServer) -> None:
    sim = Counting("a", decode=500, slots=32)
    async with sim.serve() as url, gateways(own_redis, f"backends: {{a: {{url: '{url}', slots: 6}}}}", 3) as found:
        over = False
        load = asyncio.create_task(crowd(found, lambda: over, 6))
        for _ in range(2):
            before = len(sim.requests)
            await found[0].until(lambda: len(sim.requests) > before + 60)  # noqa: B023  # of this round
            assert all(shared(gateway).joined for gateway in found)
            assert sim.most <= 6
            own_redis.kill()
            for gateway in found:
                await until_joined(gateway, False)
                assert gateway.gateway.fleet["a"].shared.sharers == 3
                assert gateway.metric("gateway_shared_joined") == 0
            before = len(sim.requests)
            await found[0].until(lambda: len(sim.requests) > before + 60)  # noqa: B023
            assert sim.most <= 6, "what ran, and of each share what that left"
            own_redis.start()
            for gateway in found:
                await until_joined(gateway, True)
            await found[0].until(lambda: all(shared(g).gateways == 3 for g in found))
            assert sim.most <= 6
        over = True
        assert set(await load) == {200}
        status = (await found[0].client.get("/status")).json()
        assert status["shared"]["away"] == 2
        assert any(event["kind"] == "shared" and "is away" in event["reason"] for event in status["events"])


async def test_a_frozen_redis_is_away_after_a_bounded_wait(own_redis: RedisServer) -> None:
    sim = SimVllm("a")
    async with (
        sim.serve() as url,
        gateways(own_redis, f"backends: {{a: {{url: '{url}', slots: 2}}}}", 2, "0.25") as found,
    ):
        own_redis.freeze()
        began = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(ask(gateway) for gateway in found for _ in range(3)))
        took = asyncio.get_running_loop().time() - began
        assert [answer.status_code for answer in answers] == [200] * 6
        assert took < 5.0, "a bounded wait, once"
        assert not any(shared(gateway).joined for gateway in found)
        assert "no answer within 250 ms" in shared(found[0]).reason
        own_redis.thaw()
        for gateway in found:
            await until_joined(gateway, True)
        assert [(await ask(gateway)).status_code for gateway in found] == [200, 200]


async def test_a_gateway_that_starts_without_redis_serves_with_the_share_it_remembers(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    own_redis.kill()
    (tmp_path / "shared.json").write_text('{"owner": "someone", "gateways": 3}')
    sim = Counting("a", decode=500, slots=32)
    async with sim.serve() as url:
        server = f"server: {{shared: '{own_redis.url}', data: '{tmp_path}'}}\n"
        async with running_gateway(f"{server}backends: {{a: {{url: '{url}', slots: 6}}}}") as one:
            answers = await asyncio.gather(*(ask(one, said="9 words") for _ in range(8)))
            assert {answer.status_code for answer in answers} == {200}
            assert sim.most == 2
            own_redis.start()
            await one.until(lambda: shared(one).joined)


async def test_what_was_learned_while_redis_was_away_is_told_when_it_is_back(own_redis: RedisServer) -> None:
    async with SimVllm("a").serve() as url, gateways(own_redis, FAST + slots_of(url, 2)) as (one, two):
        own_redis.kill()
        for gateway in (one, two):
            await until_joined(gateway, False)
        one.gateway.fleet["a"].evidence.drain()
        own_redis.start()
        await two.until(lambda: two.state("a") is State.DRAINING)
