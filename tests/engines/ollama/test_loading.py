"""Loads of a simulated Ollama that take as long as a test wants: who waits for them, who is told, what becomes of them
when a client leaves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.domain.health_state import WELL, State
from simulator import SimOllama
from tests.support import RunningGateway, running_gateway

MODEL, OTHER = "qwen3:8b", "llama3.2:3b"
ASK: dict[str, Any] = {"model": "desk", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20}
FAST = "defaults: {health: {every: 50ms}, timeouts: {first_byte: 150ms}}\n"


@asynccontextmanager
async def desk(more: str = "", rest: str = "", **options: Any) -> AsyncIterator[tuple[RunningGateway, SimOllama]]:
    """A gateway in front of an Ollama whose loads end when its gate is opened."""
    sim = SimOllama("desk", models=[MODEL, OTHER], **{"version": "0.33.0", **options})
    sim.runners.gate = asyncio.Event()
    async with sim.serve() as url:
        own = f"desk: {{engine: ollama, url: '{url}', model: '{MODEL}', context: 8192{more}}}"
        routes = f"{FAST}backends:\n  {own}\n{rest.format(url=url)}"
        async with running_gateway(routes) as gateway:
            await gateway.until(lambda: sim.seen["/api/ps"] > 0)
            await gateway.until_ready("desk")
            yield gateway, sim
            sim.runners.gate.set()


def open_gate(sim: SimOllama) -> None:
    assert sim.runners.gate is not None
    sim.runners.gate.set()


def loads(sim: SimOllama) -> int:
    return sum(request.path == "/api/generate" for request in sim.requests)


def begun(gateway: RunningGateway) -> bool:
    return gateway.gateway.fleet["desk"].load is not None


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_load_longer_than_any_silence_is_waited_for_and_harms_nobody(streamed: bool) -> None:
    async with desk(load=0.6) as (gateway, sim):
        open_gate(sim)
        reply = await gateway.client.post("/v1/chat/completions", json={**ASK, "stream": streamed})
        state = gateway.gateway.fleet["desk"]
        assert (reply.status_code, reply.headers["x-gateway-attempts"]) == (200, "1")
        assert (state.health.state in WELL, state.health.fails, sim.loads) == (True, 0, 1)
        assert state.load_seconds is not None
        assert state.load_seconds >= 0.6


async def test_all_who_wait_share_one_load_that_outlives_the_one_who_began_it() -> None:
    async with desk(", slots: 4") as (gateway, sim):
        first = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=ASK))
        await gateway.until(lambda: MODEL in sim.loaded)
        others = [asyncio.create_task(gateway.client.post("/v1/chat/completions", json=ASK)) for _ in range(2)]
        await gateway.until(lambda: gateway.gateway.fleet["desk"].inflight == 3)
        first.cancel()
        await gateway.until(lambda: gateway.gateway.fleet["desk"].inflight == 2)
        open_gate(sim)
        assert [(await other).status_code for other in others] == [200, 200]
        assert (loads(sim), sim.loads, sim.runners.aborted) == (1, 1, 0)


async def test_the_next_client_finds_the_load_that_the_last_one_left() -> None:
    async with desk() as (gateway, sim):
        first = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=ASK))
        await gateway.until(lambda: MODEL in sim.loaded)
        first.cancel()
        await gateway.until(gateway.idle)
        second = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=ASK))
        await gateway.until(lambda: gateway.gateway.fleet["desk"].inflight == 1)
        open_gate(sim)
        assert (await second).status_code == 200
        assert (loads(sim), sim.loads, sim.runners.aborted) == (1, 1, 0)


async def test_a_load_that_nobody_waits_for_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.engines.ollama.loading.LEFT", 0.0)
    async with desk() as (gateway, sim):
        first = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=ASK))
        await gateway.until(lambda: MODEL in sim.loaded)
        first.cancel()
        await gateway.until(lambda: sim.runners.aborted == 1)
        await gateway.until(lambda: not begun(gateway))
        open_gate(sim)
        assert (await gateway.client.post("/v1/chat/completions", json=ASK)).status_code == 200


async def test_a_load_beyond_its_timeout_is_a_failure_of_the_attempt() -> None:
    async with desk(", timeouts: {load: 100ms}") as (gateway, _):
        reply = await gateway.client.post("/v1/chat/completions", json=ASK)
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "upstream_timeout")
        assert "was not loaded within 0 s (timeouts.load)" in reply.json()["error"]["message"]


async def test_a_model_that_cannot_be_loaded_is_told_in_the_words_of_ollama() -> None:
    async with desk() as (gateway, sim):
        sim.fault(
            "status", status=500, body={"error": "model requires more system memory (9 GiB)"}, path="/api/generate"
        )
        reply = await gateway.client.post("/v1/chat/completions", json=ASK)
        assert reply.status_code == 502
        assert "/api/chat" not in [request.path for request in sim.requests]


async def test_a_stream_is_told_that_the_model_loads_and_so_is_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("stages", "attempt"):
        monkeypatch.setattr(f"gateway.proxy.{module}.LOADING_TOLD", 0.0)
    async with desk() as (gateway, sim):
        gateway.gateway.fleet["desk"].load_seconds = 71.0
        async with gateway.client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as reply:
            lines = reply.aiter_lines()
            told = await anext(lines)
            status = (await gateway.client.get("/status")).json()["backends"]["desk"]
            open_gate(sim)
            rest = [line async for line in lines]
        assert re.fullmatch(r": loading for \d s, last time 71 s", told)
        assert re.fullmatch(r"loading for \d s, last time 71 s", status["reason"])
        assert status["held"] == {"loaded": False, "load_seconds": 71.0}
        assert rest[-2] == "data: [DONE]"


async def test_a_messages_stream_gets_pings_while_the_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("stages", "attempt"):
        monkeypatch.setattr(f"gateway.proxy.{module}.LOADING_TOLD", 0.0)
    async with desk() as (gateway, sim):
        async with gateway.client.stream("POST", "/v1/messages", json={**ASK, "stream": True}) as reply:
            lines = reply.aiter_lines()
            while await anext(lines) != "event: ping":
                pass
            assert begun(gateway)
            open_gate(sim)
            rest = [line async for line in lines]
        assert "event: message_stop" in rest


async def test_who_waits_in_the_queue_behind_a_load_waits_as_long_as_it_may_take() -> None:
    async with desk(", slots: 1, queue: {max_wait: 0s}") as (gateway, sim):
        first = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=ASK))
        await gateway.until(lambda: begun(gateway))
        second = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=ASK))
        await gateway.until(lambda: gateway.gateway.admission.queue_depth().get("desk", 0) == 1)
        open_gate(sim)
        assert [(await one).status_code for one in (first, second)] == [200, 200]


async def test_a_stream_in_the_queue_behind_a_load_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("stages", "attempt"):
        monkeypatch.setattr(f"gateway.proxy.{module}.LOADING_TOLD", 0.0)
    async with desk(", slots: 1") as (gateway, sim):
        first = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=ASK))
        await gateway.until(lambda: begun(gateway))
        async with gateway.client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as reply:
            lines = reply.aiter_lines()
            assert (await anext(lines)).startswith(": loading for ")
            open_gate(sim)
            rest = [line async for line in lines]
        assert rest[-2] == "data: [DONE]"
        assert (await first).status_code == 200


CHAIN = """  small: {{engine: ollama, url: '{url}', model: 'llama3.2:3b', context: 8192}}
aliases:
  chain: {{use: [desk, small]%s}}
"""


@pytest.mark.parametrize(
    ("when", "last", "served"),
    [
        ("auto", None, "desk"),
        ("auto", 71.0, "small"),
        ("auto", 5.0, "desk"),
        ("next", None, "small"),
        ("wait", 71.0, "desk"),
    ],
)
async def test_the_last_load_decides_between_waiting_and_the_next_candidate(
    when: str, last: float | None, served: str
) -> None:
    rest = CHAIN % f", failover: {{{{when_loading: {when}}}}}"
    async with desk(rest=rest) as (gateway, sim):
        fleet = gateway.gateway.fleet
        await httpx.AsyncClient().post(f"{fleet['small'].backend.url}/api/show", json={"model": OTHER})
        sim.runners.gate = None
        assert (await gateway.client.post("/v1/chat/completions", json={**ASK, "model": "small"})).status_code == 200
        fleet["desk"].load_seconds = last
        gate = sim.runners.gate = asyncio.Event()
        asked = asyncio.create_task(gateway.client.post("/v1/chat/completions", json={**ASK, "model": "chain"}))
        await gateway.until(lambda: begun(gateway))
        if served == "desk":
            gate.set()
        reply = await asked
        assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, served)
        assert reply.headers.get("x-gateway-routed") == ("busy" if served == "small" else None)
        gate.set()
        await gateway.until(lambda: MODEL in sim.loaded and not begun(gateway))


# -- a guest ----------------------------------------------------------------------------------------------------------


async def direct(sim: SimOllama, **more: Any) -> None:
    assert sim.server is not None
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": False, **more}
    async with httpx.AsyncClient() as client:
        assert (await client.post(f"{sim.server.url}/api/chat", json=body)).status_code == 200


async def test_a_user_and_the_gateway_in_turns_need_one_load() -> None:
    async with desk() as (gateway, sim):
        open_gate(sim)
        for _ in range(3):
            await direct(sim, options={"num_ctx": 8192})
            reply = await gateway.client.post("/v1/chat/completions", json=ASK)
            assert reply.status_code == 200
        assert sim.loads == 1


@pytest.mark.parametrize(
    ("num_ctx", "exclusive", "asked", "after"),
    [(4096, False, 20, 4096), (131072, False, 20, 131072), (4096, False, 6000, 8192), (4096, True, 20, 8192)],
    ids=["it suffices", "it is larger", "too small for the answer", "nobody else is there"],
)
async def test_the_window_follows_what_somebody_has_loaded_where_that_suffices(
    num_ctx: int, exclusive: bool, asked: int, after: int
) -> None:
    async with desk(", exclusive: true" if exclusive else "") as (gateway, sim):
        open_gate(sim)
        await direct(sim, options={"num_ctx": num_ctx}, keep_alive="30m")
        await gateway.until(lambda: gateway.gateway.fleet["desk"].held is not None)
        reply = await gateway.client.post("/v1/chat/completions", json={**ASK, "max_tokens": asked})
        assert reply.status_code == 200
        assert (sim.loaded[MODEL][0], sim.loads) == (after, 1 if after == num_ctx else 2)


async def test_an_answer_without_a_limit_gets_what_the_window_leaves() -> None:
    async with desk() as (gateway, sim):
        open_gate(sim)
        ask = {name: value for name, value in ASK.items() if name != "max_tokens"}
        await gateway.client.post("/v1/chat/completions", json=ask)
        sent = sim.requests[-1].json
        assert "shift" not in sent
        assert 8000 < sent["options"]["num_predict"] < 8192


CANARIES = ", health: {canary: 20ms}"


async def test_what_others_have_loaded_is_left_as_it_is_by_an_idle_gateway() -> None:
    async with desk(CANARIES) as (gateway, sim):
        open_gate(sim)
        await direct(sim, options={"num_ctx": 1024}, keep_alive="30m")
        before, checks = sim.loaded[MODEL], sim.seen["/api/ps"]
        await gateway.until(lambda: sim.seen["/api/ps"] > checks + 10)
        assert (sim.loaded[MODEL], sim.loads, len(sim.requests)) == (before, 1, 1)
        assert gateway.state("desk") is State.READY


@pytest.mark.parametrize("keep_alive", ["30m", -1])
async def test_a_canary_of_a_model_with_our_window_leaves_its_expiry(keep_alive: str | int) -> None:
    async with desk(CANARIES) as (gateway, sim):
        open_gate(sim)
        await direct(sim, options={"num_ctx": 8192}, keep_alive=keep_alive)
        _, before = sim.loaded[MODEL]
        await gateway.until(lambda: len(sim.requests) >= 4)
        await gateway.until(gateway.idle)
        sent, checks = len(sim.requests), sim.seen["/api/ps"]
        await gateway.until(lambda: sim.seen["/api/ps"] > checks + 10)
        _, after = sim.loaded[MODEL]
        assert (after - before < 1.0, sim.loads) == (True, 1)
        assert before - after < 5.0 or keep_alive == -1
        if keep_alive != -1:
            assert len(sim.requests) == sent, "once until it expires"


async def test_a_model_that_nobody_uses_runs_out() -> None:
    async with desk(CANARIES) as (gateway, sim):
        open_gate(sim)
        await direct(sim, options={"num_ctx": 8192}, keep_alive=0.5)
        await gateway.until(lambda: not sim.loaded)
        assert sim.loads == 1


async def test_what_is_loaded_is_told_by_status_and_metrics() -> None:
    async with desk() as (gateway, sim):
        open_gate(sim)
        await direct(sim, options={"num_ctx": 4096}, keep_alive="30m")
        await gateway.until(lambda: gateway.gateway.fleet["desk"].held is not None)
        held = (await gateway.client.get("/status")).json()["backends"]["desk"]["held"]
        page = (await gateway.client.get("/metrics")).text
    assert (held["loaded"], held["window"], held["bytes"]) == (True, 4096, 5_200_000_000)
    assert held["until"] == pytest.approx(sim.loaded[MODEL][1], abs=1)
    assert 'gateway_backend_model_loaded{backend="desk"} 1.0' in page
    assert 'gateway_backend_model_bytes{backend="desk"} 5.2e+09' in page
