"""A simulated llama-server behind the gateway: its window, its slots and who uses them, its one memory, its hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.domain.health_state import State
from simulator import SimLlama
from simulator.faults import Fault
from tests.raw_client import chat
from tests.support import RunningGateway, from_clients, running_gateway

CHAT = "/v1/chat/completions"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("get_weather", "get_time")
]


@asynccontextmanager
async def gateway_on(sim: SimLlama, more: str = "") -> AsyncIterator[RunningGateway]:
    """The gateway has looked at its slots when the test begins, if the server shows them."""
    routes = "defaults: {health: {every: 50ms}}\nbackends: {a: {engine: llamacpp, url: '%s', %s}}"
    async with sim.serve() as url, running_gateway(routes % (url, more)) as gateway:
        await gateway.until_ready("a")
        await gateway.until(lambda: state_of(gateway).progress.last is not None or not (sim.sees_slots or sim.metrics))
        yield gateway


def state_of(gateway: RunningGateway) -> Any:
    return gateway.gateway.fleet["a"]


async def test_its_window_and_its_slots_are_read() -> None:
    async with gateway_on(SimLlama(context=16384, slots=6, unified=False)) as gateway:
        state = state_of(gateway)
        assert (state.slots, state.pool) == (6, None)
        await gateway.until(lambda: state.window(time.monotonic()) == 16384 // 6)
        shown = (await gateway.client.get("/status")).json()["backends"]["a"]
        assert (shown["slots"], shown["slots_assumed"]) == (6, False)


async def test_declared_slots_stay_as_they_are() -> None:
    async with gateway_on(SimLlama(slots=6), "slots: 3") as gateway:
        assert state_of(gateway).slots == 3


@pytest.mark.parametrize("shown", [{}, {"sees_slots": False, "metrics": True}], ids=["slots", "counters"])
async def test_requests_of_others_take_slots(shown: dict[str, Any]) -> None:
    sim = SimLlama(slots=4, **shown)
    async with gateway_on(sim) as gateway:
        sim.faults.add(Fault("hang_mid", after=1, count=1))
        direct = asyncio.create_task(gateway.client.post(sim.url + CHAT, json=chat("qwen3-taught", max_tokens=4)))
        state = state_of(gateway)
        await gateway.until(lambda: state.foreign == 1)
        sim.clear()
        await direct
        await gateway.until(lambda: state.foreign == 0)


async def test_a_server_that_shows_neither_is_served_all_the_same() -> None:
    sim = SimLlama(sees_slots=False)
    async with gateway_on(sim) as gateway:
        assert (await gateway.client.post(CHAT, json=chat("a"))).status_code == 200
        assert state_of(gateway).health.state is State.READY


async def test_requests_that_would_fill_its_memory_together_wait_for_each_other() -> None:
    """Without the reservations the second of these would end both."""
    sim = SimLlama(context=4096, slots=4, decode=2000)
    async with gateway_on(sim) as gateway:
        state = state_of(gateway)
        assert state.pool == 4096
        asks = [
            gateway.client.post(CHAT, json=chat("a", max_tokens=3000, stream=stream, ignore_eos=True))
            for stream in (False, True, False)
        ]
        answers = await asyncio.gather(*asks)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert len(from_clients(sim.requests)) == 3
        assert (state.reserved_tokens, state.health.fails) == (0, 0)


async def test_an_answer_without_a_limit_gets_one_that_leaves_the_others_room() -> None:
    sim = SimLlama(context=4096, slots=4)
    async with gateway_on(sim) as gateway:
        answer = await gateway.client.post(CHAT, json=chat("a"))
        assert answer.headers["x-gateway-adapted"] == "max_tokens_clamped"
        sent = from_clients(sim.requests)[-1].json["max_completion_tokens"]
        assert 3840 // 8 < sent < 3840 // 4  # an even share, without the prompt


async def test_a_server_whose_slots_have_windows_of_their_own_gets_requests_as_slots_allow() -> None:
    sim = SimLlama(context=4 * 4096, slots=4, unified=False)
    async with gateway_on(sim, "kv_pool: 0") as gateway:
        sim.faults.add(Fault("hang_mid", after=1, count=4))
        asks = [asyncio.create_task(gateway.client.post(CHAT, json=chat("a", max_tokens=3000))) for _ in range(4)]
        await sim.wait_inflight(4)
        assert state_of(gateway).inflight == 4
        sim.clear()
        assert [answer.status_code for answer in await asyncio.gather(*asks)] == [200] * 4


async def test_a_memory_that_was_full_is_known_from_then_on() -> None:
    sim = SimLlama(context=4096, slots=2)
    async with gateway_on(sim) as gateway:
        state = state_of(gateway)
        await gateway.until(lambda: state.reported.context == 4096)
        assert state.pool is None
        sim.faults.add(
            Fault("status", status=500, count=1, body={"error": {"message": "Context size has been exceeded."}})
        )
        assert (await gateway.client.post(CHAT, json=chat("a"))).status_code == 200
        assert [state.pool, state.health.fails] == [4096, 0]


@pytest.mark.parametrize("shown", [{}, {"sees_slots": False, "metrics": True}], ids=["slots", "counters"])
async def test_a_hung_engine_is_left_though_its_health_check_answers(
    shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.domain.progress.DEAF", 0.5)
    monkeypatch.setattr("gateway.domain.health_state.STALL_LEAST", 0.5)
    monkeypatch.setattr("gateway.health.probe_client.PROBE_TIMEOUT", 0.2)
    sim = SimLlama(**shown)
    async with gateway_on(sim) as gateway:
        sim.faults.add(Fault("hang_before", count=1))
        ask = asyncio.create_task(gateway.client.post(CHAT, json=chat("a", stream=True)))
        await sim.wait_inflight(1)
        sim.fault("hang_engine")
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        assert "has answered no look" in state_of(gateway).health.reason
        assert (await gateway.client.get(sim.url + "/health")).status_code == 200
        assert (await ask).status_code in (502, 503, 504)
        sim.clear()
        await gateway.until(lambda: gateway.state("a") is State.SUSPECT)  # its looks are answered again
        assert (await gateway.client.post(CHAT, json=chat("a"))).status_code == 200
        await gateway.until_ready("a")


async def test_a_server_that_loads_its_model_is_warming() -> None:
    sim = SimLlama()
    sim.loads = True
    routes = "defaults: {health: {every: 50ms}}\nbackends: {a: {engine: llamacpp, url: '%s'}}"
    async with sim.serve() as url, running_gateway(routes % url) as gateway:
        await gateway.until(lambda: gateway.state("a") is State.WARMING)
        sim.loads = False
        await gateway.until_ready("a")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_named_call_is_had_by_sending_that_tool_alone(stream: bool) -> None:
    sim = SimLlama()
    async with gateway_on(sim) as gateway:
        named = {"type": "function", "function": {"name": "get_time"}}
        body = chat("a", tools=TOOLS, tool_choice=named, stream=stream)
        answer = await gateway.client.post(CHAT, json=body)
        assert answer.status_code == 200
        assert "get_time" in answer.text
        sent = from_clients(sim.requests)[-1].json
        assert (sent["tools"], sent["tool_choice"]) == (TOOLS[1:], "required")


# -- as a router ---------------------------------------------------------------------------------------------------


async def test_no_look_and_no_canary_loads_a_model_and_a_request_does() -> None:
    sim = SimLlama(served=("big", "small"))
    sim.status = {"big": "unloaded", "small": "unloaded"}
    routes = "defaults: {health: {every: 50ms, canary: 50ms}}\nbackends: {a: {engine: llamacpp, url: '%s', model: big}}"
    async with sim.serve() as url, running_gateway(routes % url) as gateway:
        await gateway.until_ready("a")
        looks = sim.seen["/slots"]
        await gateway.until(lambda: sim.seen["/slots"] > looks + 3)
        assert (sim.loadings, sim.seen[CHAT], state_of(gateway).loads_on_demand) == (0, 0, True)
        assert (await gateway.client.post(CHAT, json=chat("a"))).status_code == 200
        assert (sim.loadings, sim.status) == (1, {"big": "loaded", "small": "unloaded"})
        await gateway.until(lambda: sim.seen[CHAT] > 1)  # now its canary is sent
        assert sim.loadings == 1


async def test_of_two_alike_the_one_with_its_model_loaded_is_asked() -> None:
    first, second = SimLlama("first", ("big",)), SimLlama("second", ("big",))
    first.status, second.status = {"big": "unloaded"}, {"big": "loaded"}
    async with first.serve() as one, second.serve() as two:
        routes = f"""
            defaults: {{health: {{every: 50ms}}}}
            backends: {{a: {{engine: llamacpp, url: '{one}'}}, b: {{engine: llamacpp, url: '{two}'}}}}
            aliases: {{pair: {{use: [[a, b]], balance: round_robin}}}}
        """
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            for _ in range(3):
                answer = await gateway.client.post(CHAT, json=chat("pair"))
                assert answer.headers["x-gateway-backend"] == "b"
        assert (first.loadings, from_clients(first.requests)) == (0, [])
