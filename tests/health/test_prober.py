"""Health as clients and operators see it: what takes a backend out, and what brings it back."""

from __future__ import annotations

import logging
import time

import pytest

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.one_backend import FAST, NO_SUCH_MODEL, NO_WAIT, ask, health_of, one_backend, probed, under_way
from tests.support import from_clients, running_gateway

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
    monkeypatch.setattr("gateway.health.probe_client.PROBE_TIMEOUT", 0.05)
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
        if state.progress.last is not None:
            state.progress.moved_at = state.last_event
        await prober.check(state, read_models=False)
        assert gateway.state("a") is State.SUSPECT


async def test_probes_carry_the_backends_own_key() -> None:
    sim = SimVllm("a", api_key="right")
    async with one_backend(sim, "api_key: right") as gateway:
        await gateway.until_ready("a")
        assert gateway.gateway.fleet["a"].reported.context == sim.context
        assert (await ask(gateway)).status_code == 200


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
        assert len(from_clients(sim.requests)) == 1, "not asked again"


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
        for number in range(3):  # different bodies: the same one again says nothing new
            assert (await ask(gateway, "chat", seed=number)).status_code == 502
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
