"""What requests find of a backend: what takes it out, who tries it again, and what is not held against it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.domain.endpoints import CHAT
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from simulator import SimVllm
from tests.one_backend import FAST, ask, bring_down, health_of, one_backend, probed, under_way
from tests.support import RunningGateway, from_clients, running_gateway


@asynccontextmanager
async def half_open() -> AsyncIterator[tuple[RunningGateway, SimVllm, Health]]:
    """A backend that has failed three requests and is well again: one request on trial decides."""
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        health = await bring_down(gateway, sim)
        await gateway.until(lambda: health.half_open)
        yield gateway, sim, health


async def test_a_backend_that_is_healthy_but_fails_every_chat_is_taken_out_and_stays_out() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        health_of(gateway).backoff = 60.0  # a slow machine makes the six probes last longer than the usual two seconds
        sim.fault("status", status=500, body="vllm_engine_dead")
        states = []
        for _ in range(3):
            assert (await ask(gateway)).json()["error"]["code"] == "upstream_error"
            states.append(gateway.state("a"))
        assert states == [State.SUSPECT, State.SUSPECT, State.DOWN]
        await probed(gateway, sim, 6)
        assert gateway.state("a") is State.DOWN, "its /health says 200, which proves nothing"
        assert (await ask(gateway)).status_code == 429
        assert len(from_clients(sim.requests)) == 3


async def test_half_open_lets_one_request_through_and_its_answer_decides() -> None:
    async with half_open() as (gateway, sim, health):
        asked = len(sim.requests)
        sim.fault("hang_before", count=1)
        async with under_way(gateway, sim):
            refused = await asyncio.gather(*(ask(gateway) for _ in range(4)))
            assert {r.status_code for r in refused} == {503}
            assert len(sim.requests) == asked + 1
        await gateway.until(gateway.idle)
        assert health.half_open, "a client that left decides nothing"
        assert (await ask(gateway)).status_code == 200
        assert gateway.state("a") is State.READY


async def test_no_harmless_request_that_was_still_to_come_decides_a_trial() -> None:
    """It is due a second after the one before, and the backend may have been down and be half-open by then."""
    async with half_open() as (gateway, _, health):
        assert health.unanswered_lately
        suspicion = gateway.gateway.prober.suspicion
        suspicion._probe_again(gateway.gateway.fleet["a"], CHAT, False)
        assert not suspicion.busy
        assert (await ask(gateway)).status_code == 200


async def test_a_trial_that_fails_takes_it_out_again_for_longer() -> None:
    async with half_open() as (gateway, sim, health):
        sim.fault("status", status=500)
        await ask(gateway)
        assert (gateway.state("a"), health.backoff) == (State.DOWN, 0.2)


async def test_a_request_that_began_before_does_not_end_the_trial() -> None:
    """It gives its slot back while another request is on trial: still only that one is let through."""
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        health = health_of(gateway)
        health.backoff = 0.05
        async with AsyncExitStack() as trials:
            async with AsyncExitStack() as before:
                sim.fault("hang_mid", after=2, count=1)
                await before.enter_async_context(under_way(gateway, sim))
                await sim.wait_for(lambda: sim.requests[-1].faults)
                sim.fault("status", status=500, count=6)  # each, and the harmless request after it
                for _ in range(3):
                    await ask(gateway)
                await gateway.until(lambda: health.half_open)
                sim.fault("hang_before", count=1)
                await trials.enter_async_context(under_way(gateway, sim))
                await sim.wait_for(lambda: sim.requests[-1].faults)
            await gateway.until(lambda: gateway.gateway.fleet["a"].inflight == 1)
            assert (await ask(gateway)).status_code == 503


async def test_a_backend_that_fails_fast_does_not_attract_the_traffic() -> None:
    """The emptier of two, since everything there ends at once."""
    broken, slow = SimVllm("broken"), SimVllm("slow")
    async with broken.serve() as one, slow.serve() as two:
        routes = (
            f"backends: {{broken: {{url: '{one}'}}, slow: {{url: '{two}'}}}}\n"
            "aliases: {pair: {use: [[broken, slow]], balance: least_busy}}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("broken", "slow")
            slow.fault("hang_mid", after=1, count=1)
            broken.fault("status", status=500)
            async with under_way(gateway, slow, "slow"):
                answers = [await ask(gateway, "pair") for _ in range(10)]
            assert {a.status_code for a in answers} == {200}
            assert len(from_clients(broken.requests)) == 1


async def test_a_replica_that_failed_once_is_asked_again_though_its_sibling_is_well() -> None:
    """After its pause and good checks one request finds out; until then none goes there, after it they share again."""
    one, two = SimVllm("one"), SimVllm("two")
    async with one.serve() as first, two.serve() as second:
        routes = (
            f"{FAST}backends: {{one: {{url: '{first}', timeouts: {{first_byte: 300ms}}}}, two: {{url: '{second}'}}}}\n"
            "aliases: {pair: {use: [[one, two]], balance: round_robin}}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("one", "two")
            health = health_of(gateway, "one")
            one.fault("hang_before", count=1)  # silence is held against it; a 5xx would be asked about at once
            while gateway.state("one") is not State.SUSPECT:
                await ask(gateway, "pair")
            asked = len(one.requests)
            await probed(gateway, one, 4)
            await ask(gateway, "pair")
            await ask(gateway, "pair")
            assert len(one.requests) == asked, "its pause is not over"
            health.retry_at = 0.0
            reply = await ask(gateway, "pair")
            assert reply.headers["x-gateway-backend"] == "one"
            assert gateway.state("one") is State.READY
            served = {(await ask(gateway, "pair")).headers["x-gateway-backend"] for _ in range(4)}
            assert served == {"one", "two"}


async def test_a_credential_that_only_chats_refuse_is_tried_ever_more_rarely() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        sim.fault("status", status=401, path="/v1/chat/completions")
        health = health_of(gateway)
        assert (await ask(gateway)).status_code == 502
        await gateway.until(lambda: gateway.state("a") is State.SUSPECT)  # its model list is fine: one may try
        assert (await ask(gateway)).status_code == 502
        await probed(gateway, sim, 4)
        assert gateway.state("a") is State.MISCONFIGURED, "not at once again"
        pause, health.retry_at = health.retry_at - health.since, 0.0
        await gateway.until(lambda: gateway.state("a") is State.SUSPECT)
        assert (await ask(gateway)).status_code == 502
        assert health.retry_at - health.since > pause


async def test_the_breaker_orders_but_does_not_veto() -> None:
    """Two suspects: the better one is still asked."""
    one, two = SimVllm("one"), SimVllm("two")
    async with one.serve() as first, two.serve() as second:
        routes = (
            "defaults: {timeouts: {first_byte: 300ms}}\n"
            f"backends: {{one: {{url: '{first}'}}, two: {{url: '{second}'}}}}\naliases: {{pair: [[one, two]]}}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("one", "two")
            for sim in (one, two):
                sim.fault("hang_before", count=1)
            assert (await ask(gateway, "pair")).status_code == 504
            assert {gateway.state("one"), gateway.state("two")} == {State.SUSPECT}
            assert (await ask(gateway, "pair")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 404, 413, 422, 429])
async def test_a_backends_4xx_is_never_held_against_it(status: int, stream: bool) -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        error = {"error": {"message": "you did it wrong", "type": "BadRequestError", "code": status}}
        sim.fault("status", status=status, body=error, headers={"retry-after": "0"})
        for _ in range(5):
            assert (await ask(gateway, stream=stream)).status_code == status
        health = health_of(gateway)
        assert (health.state, health.fails, health.from_requests) == (State.READY, 0, False)
        assert len(sim.requests) == 5
