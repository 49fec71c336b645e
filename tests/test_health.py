"""Health as clients and operators see it: what takes a backend out, and what brings it back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.health.machine import Health
from gateway.health.state import State
from gateway.sim import SimVllm
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

# Nobody waits: the first answer says what the gateway thinks.
FAST = "defaults: {health: {every: 50ms, fail_after: 3, recover_after: 2}, queue: {max_wait: 0s}}\n"
NO_WAIT = "defaults: {queue: {max_wait: 0s}}\n"
NO_SUCH_MODEL = {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}}


@asynccontextmanager
async def one_backend(sim: SimVllm, more: str = "", before: str = FAST) -> AsyncIterator[RunningGateway]:
    """A gateway with the one backend `a`; `more` are further keys of it."""
    async with sim.serve() as url, running_gateway(f"{before}backends: {{a: {{url: '{url}', {more}}}}}") as gateway:
        yield gateway


def health_of(gateway: RunningGateway, backend: str = "a") -> Health:
    return gateway.gateway.fleet[backend].health


async def ask(gateway: RunningGateway, model: str = "a", **further: Any) -> httpx.Response:
    return await gateway.client.post("/v1/chat/completions", json=chat(model, **further))


@asynccontextmanager
async def under_way(gateway: RunningGateway, sim: SimVllm, model: str = "a") -> AsyncIterator[None]:
    """A request that has reached `sim` (which must hold it) and whose client leaves at the end."""
    count = sim.inflight + 1
    request = asyncio.create_task(ask(gateway, model))
    try:
        await sim.wait_inflight(count)
        record = sim.requests[-1]
        yield
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await sim.wait_for(lambda: record.done)


async def probed(gateway: RunningGateway, sim: SimVllm, times: int) -> None:
    """Wait for so many further health checks."""
    wanted = sim.seen["/health"] + times
    await gateway.until(lambda: sim.seen["/health"] >= wanted)


# -- liveness ---------------------------------------------------------------------------------------------------------


async def test_bad_health_checks_take_a_backend_out_and_good_ones_bring_it_back() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        sim.fault("unhealthy")
        checks = sim.seen["/health"]
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        assert sim.seen["/health"] - checks in (3, 4), "fail_after checks"
        assert (await ask(gateway)).json()["error"]["code"] == "backend_warming", "it has only just gone"
        assert sim.requests == []
        sim.clear()
        await gateway.until_ready("a")
        assert (await ask(gateway)).status_code == 200
        changes = [gateway.metric("gateway_backend_transitions_total", backend="a", after=s) for s in ("down", "ready")]
        assert changes == [1, 2]


async def test_a_killed_backend_is_down_within_its_checks_and_back_after_a_restart() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        await sim.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        await sim.revive()
        await gateway.until_ready("a")
        assert (await ask(gateway)).status_code == 200


async def test_one_bad_check_does_not_stop_traffic() -> None:
    sim = SimVllm("a")
    async with one_backend(sim, before=FAST.replace("50ms", "10s")) as gateway:
        await gateway.until_ready("a")
        sim.fault("unhealthy")
        await gateway.gateway.prober.check(gateway.gateway.fleet["a"], read_models=False)
        assert gateway.state("a") is State.SUSPECT
        assert (await ask(gateway)).status_code == 200


async def test_a_check_that_takes_too_long_does_not_count_while_its_streams_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Busy is not dead."""
    monkeypatch.setattr("gateway.health.asker.PROBE_TIMEOUT", 0.05)
    sim = SimVllm("a")
    async with one_backend(sim, before=FAST.replace("50ms", "10s")) as gateway:
        await gateway.until_ready("a")
        state, prober = gateway.gateway.fleet["a"], gateway.gateway.prober
        sim.fault("hang_health")
        state.last_event = time.monotonic()
        for _ in range(4):
            await prober.check(state, read_models=False)
        assert state.health.state is State.READY
        state.last_event = time.monotonic() - 11.0
        if state.progress is not None:
            state.progress.moved_at = state.last_event
        await prober.check(state, read_models=False)
        assert gateway.state("a") is State.SUSPECT


async def test_probes_carry_the_backends_own_key() -> None:
    sim = SimVllm("a", api_key="right")
    async with one_backend(sim, "api_key: right") as gateway:
        await gateway.until_ready("a")
        assert gateway.gateway.fleet["a"].observed_context == sim.context
        assert (await ask(gateway)).status_code == 200


# -- requests ---------------------------------------------------------------------------------------------------------


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
        assert len(sim.requests) == 3


async def test_half_open_lets_one_request_through_and_its_answer_decides() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        health = health_of(gateway)
        health.backoff = 0.05
        sim.fault("status", status=500, count=3)
        for _ in range(3):
            await ask(gateway)
        assert gateway.state("a") is State.DOWN
        await gateway.until(lambda: health.half_open)
        sim.fault("hang_before", count=1)
        async with under_way(gateway, sim):
            refused = await asyncio.gather(*(ask(gateway) for _ in range(4)))
            assert {r.status_code for r in refused} == {503}
            assert len(sim.requests) == 4
        await gateway.until(gateway.idle)
        assert health.half_open, "a client that left decides nothing"
        assert (await ask(gateway)).status_code == 200
        assert gateway.state("a") is State.READY


async def test_a_trial_that_fails_takes_it_out_again_for_longer() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        health = health_of(gateway)
        health.backoff = 0.05
        sim.fault("status", status=500)
        for _ in range(3):
            await ask(gateway)
        await gateway.until(lambda: health.half_open)
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
                sim.fault("status", status=500, count=3)
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
            assert len(broken.requests) == 1


async def test_a_replica_that_failed_once_is_asked_again_though_its_sibling_is_well() -> None:
    """After its pause and good checks one request finds out; until then none goes there, after it they share again."""
    one, two = SimVllm("one"), SimVllm("two")
    async with one.serve() as first, two.serve() as second:
        routes = (
            f"{FAST}backends: {{one: {{url: '{first}'}}, two: {{url: '{second}'}}}}\n"
            "aliases: {pair: {use: [[one, two]], balance: round_robin}}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("one", "two")
            health = health_of(gateway, "one")
            one.fault("status", status=500, count=1)
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
        routes = f"backends: {{one: {{url: '{first}'}}, two: {{url: '{second}'}}}}\naliases: {{pair: [[one, two]]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("one", "two")
            for sim in (one, two):
                sim.fault("status", status=500, count=1)
            assert (await ask(gateway, "pair")).status_code == 502
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


# -- misconfigured ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_refused_credential_or_model_is_the_operators_and_never_the_clients(status: int) -> None:
    sim = SimVllm("a")
    async with one_backend(sim, before=FAST.replace("50ms", "10s")) as gateway:
        await gateway.until_ready("a")
        sim.fault("status", status=status, body=NO_SUCH_MODEL if status == 404 else {"error": "Unauthorized"})
        answer = await ask(gateway)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
        assert gateway.state("a") is State.MISCONFIGURED
        await ask(gateway)
        assert len(sim.requests) == 1, "not asked again"


async def test_a_wrong_key_is_noticed_by_the_probe_and_forgiven_when_it_is_right() -> None:
    sim = SimVllm("a", api_key="right")
    async with one_backend(sim, "api_key: wrong") as gateway:
        await gateway.until(lambda: gateway.state("a") is State.MISCONFIGURED)
        assert "api_key" in health_of(gateway).reason
        answer = await ask(gateway)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_backend_available")
        assert "wrong" not in answer.text
        assert sim.requests == []
        sim.api_key = "wrong"
        await gateway.until(lambda: gateway.state("a") is State.SUSPECT)
        await probed(gateway, sim, 4)
        assert gateway.state("a") is State.SUSPECT, "one request decides"
        assert (await ask(gateway)).status_code == 200
        assert gateway.state("a") is State.READY


async def test_a_declared_model_that_is_not_served_is_misconfigured() -> None:
    sim = SimVllm("a", served=["other/model"])
    async with one_backend(sim, "model: my/model") as gateway:
        await gateway.until(lambda: gateway.state("a") is State.MISCONFIGURED)
        assert "my/model" in health_of(gateway).reason
        assert "other/model" in health_of(gateway).reason


# -- on demand --------------------------------------------------------------------------------------------------------


def is_loud(record: logging.LogRecord) -> bool:
    return record.name.startswith("gateway") and record.levelno >= logging.WARNING


async def test_on_demand_is_parked_without_a_warning_and_the_next_step_serves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    big, small = SimVllm("big"), SimVllm("small")
    await big.start(running=False)
    try:
        async with small.serve() as url:
            routes = (
                f"{FAST}backends: {{big: {{url: '{big.url}', run: on_demand}}, small: {{url: '{url}'}}}}\n"
                "aliases: {chain: [big, small], alone: [big]}"
            )
            async with running_gateway(routes) as gateway:
                await gateway.until_ready("small")
                await gateway.until(lambda: gateway.state("big") is State.PARKED)
                assert [r.getMessage() for r in caplog.records if is_loud(r)] == []
                answer = await ask(gateway, "chain")
                assert (answer.headers["x-gateway-backend"], answer.headers["x-gateway-fallback"]) == (
                    "small",
                    "parked",
                )
                assert (await ask(gateway, "alone")).json()["error"]["code"] == "no_backend_available", "no wait"
                await big.revive()
                await gateway.until_ready("big")
                assert (await ask(gateway, "chain")).headers["x-gateway-backend"] == "big"
                await big.kill()
                await gateway.until(lambda: gateway.state("big") is State.PARKED)
                assert [r.getMessage() for r in caplog.records if is_loud(r) and "suspect" not in r.getMessage()] == []
    finally:
        await big.stop()


# -- never probed -----------------------------------------------------------------------------------------------------


async def test_a_cloud_backend_that_is_never_probed_comes_back_by_one_request_after_its_pause() -> None:
    sim = SimVllm("a", generic=True)
    async with one_backend(
        sim, "engine: openai, cloud: true, model: model", NO_WAIT + "aliases: {chat: [a]}\n"
    ) as gateway:
        health = health_of(gateway)
        sim.fault("status", status=500)
        for _ in range(3):
            assert (await ask(gateway, "chat")).status_code == 502
        assert (gateway.state("a"), sim.seen["/v1/models"]) == (State.DOWN, 0)
        assert (await ask(gateway, "chat")).status_code == 429
        assert len(sim.requests) == 3
        sim.clear()
        health.retry_at = 0.0  # its pause is over
        sim.fault("hang_before", count=1)
        async with under_way(gateway, sim, "chat"):
            assert (await ask(gateway, "chat")).status_code == 429, "one request at a time"
        await gateway.until(gateway.idle)
        assert (await ask(gateway, "chat")).status_code == 200
        assert gateway.state("a") is State.READY
