"""A vLLM that somebody has put to sleep is parked: no failure, no alert, no request waits for it. Awake, it comes back
as any backend does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.domain.health_machine import ASLEEP
from gateway.domain.health_state import State
from gateway.routing.alias_status import view_alias
from simulator import SimVllm
from tests.health.machine import SETTINGS, canaried, ready
from tests.one_backend import ask
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

FAST = "defaults: {health: {every: 50ms, fail_after: 3, recover_after: 2, canary: CANARY}}\n"


@asynccontextmanager
async def two(a: SimVllm, b: SimVllm, canary: str = "none") -> AsyncIterator[RunningGateway]:
    async with a.serve() as one, b.serve() as other:
        backends = f"backends: {{a: {{url: '{one}'}}, b: {{url: '{other}'}}}}\naliases: {{both: [a, b]}}\n"
        async with running_gateway(FAST.replace("CANARY", canary) + backends) as gateway:
            await gateway.until_ready("a", "b")
            yield gateway


async def is_asleep(gateway: RunningGateway) -> None:
    await gateway.until(lambda: gateway.state("a") is State.PARKED)


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_a_sleeping_vllm_is_parked_and_requests_go_to_the_next_step(level: int) -> None:
    a, b = SimVllm("a", dev_mode=True), SimVllm("b")
    async with two(a, b) as gateway:
        a.sleep(level)
        await is_asleep(gateway)
        answer = await ask(gateway, "both")
        assert (answer.headers["x-gateway-backend"], answer.headers["x-gateway-attempts"]) == ("b", "1")
        states = gateway.gateway.fleet.states
        assert states["a"].health.reason.startswith("asleep: ")
        alias = gateway.gateway.snapshot.aliases["both"]
        assert view_alias(alias, states, time.monotonic()).course == "home"
        alone = await ask(gateway, "a")
        assert (alone.status_code, "is parked (asleep)" in alone.text) == (503, True)


async def test_awake_it_serves_again() -> None:
    a, b = SimVllm("a", dev_mode=True), SimVllm("b")
    async with two(a, b) as gateway:
        a.sleep()
        await is_asleep(gateway)
        a.wake_up()
        await gateway.until_ready("a")
        assert (await ask(gateway, "both")).headers["x-gateway-backend"] == "a"


async def test_awake_it_has_to_pass_its_canary() -> None:
    a, b = SimVllm("a", dev_mode=True), SimVllm("b")
    async with two(a, b, canary="1h") as gateway:
        a.sleep()
        await is_asleep(gateway)
        a.fault("hang_before")
        a.wake_up()
        await gateway.until(lambda: gateway.state("a") is State.WARMING)
        await a.wait_for(lambda: a.inflight)
        assert gateway.state("a") is State.WARMING
        a.clear()
        await gateway.until_ready("a")


async def test_a_request_that_reached_it_just_before_goes_on_elsewhere() -> None:
    a, b = SimVllm("a", dev_mode=True), SimVllm("b")
    async with two(a, b) as gateway:
        a.engine.sleep(1)  # requests wait inside until it is awake
        answer = await asyncio.wait_for(ask(gateway, "both"), 5)
        assert answer.headers["x-gateway-backend"] == "b"
        await is_asleep(gateway)
        assert gateway.gateway.fleet["a"].health.fails == 0


async def test_a_server_without_the_path_is_asked_once_and_again_after_a_restart() -> None:
    a, b = SimVllm("a"), SimVllm("b")
    async with two(a, b) as gateway:
        await gateway.until(lambda: a.seen["/health"] >= 10)
        assert a.seen["/is_sleeping"] == 1
        await a.kill()
        await gateway.until(lambda: gateway.state("a") is not State.READY)
        a.dev_mode = True
        await a.revive()
        await gateway.until_ready("a")
        await gateway.until(lambda: a.seen["/is_sleeping"] >= 3)


async def test_a_vllm_that_is_killed_in_its_sleep_is_down() -> None:
    a, b = SimVllm("a", dev_mode=True), SimVllm("b")
    async with two(a, b) as gateway:
        a.sleep()
        await is_asleep(gateway)
        await a.kill()
        await gateway.until(lambda: gateway.state("a") in (State.WARMING, State.DOWN))
        assert not gateway.gateway.fleet["a"].health.asleep


async def test_the_simulator_sleeps_and_wakes_as_vllm_does() -> None:
    a = SimVllm("a", dev_mode=True)
    async with two(a, SimVllm("b")) as gateway:
        url = gateway.gateway.fleet["a"].backend.url
        client = gateway.client
        assert (await client.get(f"{url}/is_sleeping")).json() == {"is_sleeping": False}
        assert (await client.post(f"{url}/sleep?level=2")).content == b""
        assert (await client.get(f"{url}/is_sleeping")).json() == {"is_sleeping": True}
        assert 'sleep_state="discard_all"} 1.0' in (await client.get(f"{url}/metrics")).text
        waits = asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=chat("model")))
        await a.wait_for(lambda: a.engine.waiting)
        assert (await client.post(f"{url}/wake_up")).status_code == 200
        assert (await waits).status_code == 200
        assert (await client.post(f"{url}/_sim/sleep", json={"level": 1})).status_code == 200
        assert a.engine.sleep_level == 1
        await client.post(f"{url}/_sim/wake_up")
        assert a.engine.sleep_level is None
        b = gateway.gateway.fleet["b"].backend.url
        assert (await client.get(f"{b}/is_sleeping")).status_code == 404
        assert (await client.post(f"{b}/_sim/sleep")).status_code == 400


def test_no_evidence_wakes_it_but_the_engine_itself() -> None:
    health = canaried()
    assert health.sleeps(1.0) is not None
    for event in (health.alive, health.succeeded, health.proved, health.cleared, health.configured):
        assert event(2.0) is None
    assert (health.dead("timed out", 3.0), health.misconfigured("no", 3.0)) == (None, None)
    assert (health.state, health.reason) == (State.PARKED, ASLEEP)
    woke = health.awake(4.0)
    assert woke is not None
    assert woke.after is State.WARMING


def test_the_mode_and_the_sleep_are_independent() -> None:
    health = ready()
    health.park("outside mode 'ds4'", 1.0)
    assert health.sleeps(2.0) is None
    assert health.reason == "outside mode 'ds4'"
    assert health.unpark(3.0) is None
    assert (health.state, health.reason) == (State.PARKED, ASLEEP)
    health.park("outside mode 'ds4'", 4.0)
    assert health.awake(5.0) is None
    assert health.state is State.PARKED
    health.alive(6.0)
    back = health.unpark(7.0)
    assert back is not None
    assert back.after is State.READY


def test_a_drain_outlasts_the_sleep() -> None:
    health = ready()
    health.sleeps(1.0)
    health.drain(2.0)
    health.awake(3.0)
    assert health.state is State.DRAINING


def test_a_vllm_that_went_in_its_sleep_has_its_start_grace() -> None:
    health = ready()
    health.sleeps(1.0)
    gone = health.dead("refused", 2.0, refused=True)
    assert gone is not None
    assert gone.after is State.WARMING
    assert health.dead("refused", 3.0, refused=True) is None
    down = health.dead("refused", 3.0 + SETTINGS.start_grace, refused=True)
    assert down is not None
    assert down.after is State.DOWN
