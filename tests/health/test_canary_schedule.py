"""From nothing to ready: a port that opens late, a warm-up, a canary; and what a failing canary means."""

from __future__ import annotations

import asyncio

import pytest

from gateway.domain.facts import Observation
from gateway.domain.health_state import State
from gateway.health.canary_schedule import outcome_of
from gateway.health.checks.requests import LIFE
from simulator import SimOllama, SimVllm
from tests.one_backend import bring_down
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway
from tests.warming import ASKED, FAST, QWEN36, ask, canaried, one, sim_of, story

AS_BEFORE = "answers again, as it did before; its canary runs beside requests"
SOON = 10.0  # seconds

# -- the way to ready -------------------------------------------------------------------------------------------------


async def test_an_engine_that_starts_is_warming_and_gets_traffic_only_after_its_warm_up() -> None:
    sim = sim_of()
    async with one(sim, running=False) as gateway:
        await gateway.until(lambda: gateway.state("a") is State.WARMING)
        waiting = asyncio.create_task(ask(gateway))
        sim.fault("hang_before", count=1)
        await sim.revive()
        await sim.wait_inflight(1)
        sim.clear()
        assert (await waiting).status_code == 200
        ours = [r.headers["x-request-id"].startswith("probe-") for r in sim.requests]
        assert ours == [True] * ASKED + [False], "the warm-up and the canary come first"
        assert story(gateway) == ["warming", "ready"]


async def test_a_backend_that_fell_comes_back_after_good_checks_and_a_canary() -> None:
    sim = sim_of()
    async with one(sim) as gateway:
        await gateway.until_ready("a")
        await canaried(gateway, sim, 2)
        await sim.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        sim.requests.clear()
        await sim.revive()
        await gateway.until_ready("a")
        assert sim.requests[0].json["max_tokens"] == LIFE
        await gateway.until(lambda: len(sim.requests) == ASKED)
        assert story(gateway) == ["ready", "suspect", "down", "warming", "ready"]
        reasons = [e.reason for e in gateway.gateway.events if e.kind == "state"]
        assert reasons[-2:] == ["2 good health checks; a canary decides", AS_BEFORE]


async def restarted(gateway: RunningGateway, sim: SimVllm) -> None:
    """It passes a canary, falls, and is started again."""
    await gateway.until_ready("a")
    await gateway.until(lambda: "tool_auto" in gateway.gateway.fleet["a"].facts.observed)
    await canaried(gateway, sim, 3)
    await sim.kill()
    await gateway.until(lambda: gateway.state("a") is State.DOWN)
    sim.requests.clear()


async def test_where_it_was_well_before_requests_do_not_wait_for_its_canary() -> None:
    sim = sim_of()
    async with one(sim) as gateway:
        await restarted(gateway, sim)
        await sim.revive()
        async with asyncio.timeout(SOON):
            await sim.wait_for(lambda: sim.requests)
            sim.fault("hang_before", count=1)
            await gateway.until_ready("a")
            await sim.wait_inflight(1)  # the canary
            assert (await ask(gateway)).status_code == 200
        assert sim.inflight == 1
        sim.clear()


async def test_a_canary_beside_requests_that_goes_wrong_has_the_next_one_decide_again() -> None:
    sim = sim_of()
    async with one(sim) as gateway:
        await restarted(gateway, sim)
        sim.fault("garbage")
        await sim.revive()
        await gateway.until(lambda: gateway.state("a") is State.SUSPECT)
        assert "canary (arithmetic)" in gateway.gateway.fleet["a"].health.reason
        await sim.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        sim.clear()
        sim.requests.clear()
        gateway.gateway.fleet["a"].health.retry_at = 0.0
        await sim.revive()
        await gateway.until_ready("a")
        assert len(sim.requests) >= ASKED
        assert story(gateway).count("ready") == 3


async def test_after_requests_have_failed_there_its_canary_decides() -> None:
    sim = sim_of()
    async with one(sim) as gateway:
        await restarted(gateway, sim)
        await sim.revive()
        await gateway.until_ready("a")
        await gateway.until(lambda: len(sim.requests) == ASKED and sim.inflight == 0)
        await bring_down(gateway, sim)
        asked = len(sim.requests)
        await gateway.until_ready("a")
        assert len(sim.requests) >= asked + ASKED


async def test_a_hung_engine_is_not_used_again_before_its_canary_is_answered() -> None:
    """Its /health is green all the time."""
    sim = sim_of()
    async with one(sim, ", timeouts: {first_byte: 200ms}") as gateway:
        await gateway.until_ready("a")
        await canaried(gateway, sim, 2)
        sim.fault("hang_engine")
        state = gateway.gateway.fleet["a"]
        state.evidence.stalled("its engine stood still")
        state.health.retry_at = 0.0
        state.health.backoff = 0.05
        asked = len(sim.requests)
        await gateway.until(lambda: len(sim.requests) >= asked + 2)
        assert state.health.state is State.DOWN
        assert "canary" in state.health.reason
        waiting = asyncio.create_task(ask(gateway))
        sim.clear()
        assert (await waiting).status_code == 200
        assert len([r for r in sim.requests if not r.headers["x-request-id"].startswith("probe-")]) == 1


async def test_a_verdict_of_requests_is_cleared_by_a_canary_and_not_by_a_client() -> None:
    sim = sim_of()
    async with one(sim) as gateway:
        await gateway.until_ready("a")
        await canaried(gateway, sim, 2)
        health = await bring_down(gateway, sim)
        asked = len(sim.requests)
        await gateway.until_ready("a")
        assert len(sim.requests) == asked + ASKED
        assert not health.half_open


async def test_a_credential_that_only_chats_refuse_is_found_by_the_canary() -> None:
    sim = sim_of()
    async with one(sim, running=False) as gateway:
        sim.fault("status", status=401, path="/v1/chat/completions")
        await sim.revive()
        await gateway.until(lambda: gateway.state("a") is State.MISCONFIGURED)
        assert "api_key" in gateway.gateway.fleet["a"].health.reason
        assert (await ask(gateway)).json()["error"]["code"] == "no_backend_available"


# -- first contact and idle -------------------------------------------------------------------------------------------


async def test_on_first_contact_it_is_asked_in_the_background_and_what_is_seen_counts() -> None:
    sim = sim_of()
    sim.tool_parser = None  # started without one
    async with one(sim, ", tool_parser: qwen3_coder") as gateway:
        await gateway.until_ready("a")
        await gateway.until(lambda: "tool_auto" in gateway.gateway.fleet["a"].facts.observed)
        assert gateway.state("a") is State.READY, "what it cannot do is no illness"
        assert gateway.metric("gateway_canary", backend="a", check="arithmetic") == 1
        await gateway.until(lambda: any(e.kind == "drift" for e in gateway.gateway.events))
        (drift,) = [e for e in gateway.gateway.events if e.kind == "drift"]
        assert "tool_parser: qwen3_coder is declared" in drift.reason
        with_tools = chat("a", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
        refused = await gateway.client.post("/v1/chat/completions", json=with_tools)
        assert refused.json()["error"]["code"] == "tool_choice_unsupported"


async def test_an_engine_that_says_garbage_is_the_last_choice() -> None:
    sim = sim_of()
    sim.fault("garbage")
    async with one(sim) as gateway:
        await gateway.until(lambda: gateway.state("a") is State.SUSPECT)
        assert "canary (arithmetic)" in gateway.gateway.fleet["a"].health.reason


async def test_a_canary_is_sent_again_when_the_backend_is_idle_and_not_while_it_is_busy() -> None:
    sim = sim_of()
    await sim.start()
    try:
        routes = f"{FAST.replace('1h', '100ms')}backends: {{a: {{url: '{sim.url}'}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until(lambda: len(sim.requests) >= 6)
            state = gateway.gateway.fleet["a"]
            state.inflight += 1  # as a request of somebody
            await gateway.until(lambda: sim.inflight == 0)
            asked, checks = len(sim.requests), sim.seen["/health"]
            await gateway.until(lambda: sim.seen["/health"] >= checks + 8)
            assert len(sim.requests) == asked
            state.inflight -= 1
            await gateway.until(lambda: len(sim.requests) > asked)
    finally:
        await sim.stop()


async def test_with_canary_none_the_gateway_sends_no_requests_of_its_own() -> None:
    sim = sim_of()
    async with one(sim, ", health: {canary: none}") as gateway:
        await gateway.until_ready("a")
        await sim.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        await sim.revive()
        await gateway.until_ready("a")
        assert sim.requests == []


async def test_an_ollama_is_asked_only_while_its_model_is_loaded() -> None:
    sim = SimOllama("a", models=["qwen3:8b"])
    async with sim.serve() as url:
        routes = f"{FAST}backends: {{a: {{engine: ollama, url: '{url}', model: 'qwen3:8b', context: 8192}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            await gateway.until(lambda: sim.seen["/api/ps"] >= 3)
            assert sim.requests == []
            await ask(gateway)
            await gateway.until(lambda: len(sim.requests) >= 4)
            await gateway.until(gateway.idle)
            await sim.kill()
            await gateway.until(lambda: gateway.state("a") is State.DOWN)
            asked = len(sim.requests)
            await sim.revive()
            await gateway.until_ready("a")
            assert len(sim.requests) == asked


@pytest.mark.parametrize("said", [True, False])
async def test_a_cloud_is_asked_only_when_it_says_so_itself(said: bool) -> None:
    cloud, local = sim_of("cloud", generic=True), sim_of("local")
    async with cloud.serve() as first, local.serve() as second:
        own = ", health: {canary: 50ms}" if said else ""
        routes = (
            f"{FAST.replace('1h', '50ms')}backends:\n"
            f"  cloud: {{engine: openai, cloud: true, url: '{first}', model: {QWEN36}{own}}}\n"
            f"  local: {{url: '{second}'}}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until(lambda: len(local.requests) > 6)
            if said:
                await gateway.until(lambda: len(cloud.requests) > 0)
            assert bool(cloud.requests) is said


def test_an_engine_that_cannot_chat_is_well() -> None:
    seen = dict.fromkeys(("plain", "arithmetic"), Observation("untested", "it serves no chat"))
    assert outcome_of(seen, []).kind == "ok"
