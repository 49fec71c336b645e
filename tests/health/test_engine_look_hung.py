"""An engine that stands still behind a green /health is left; what ran there goes on elsewhere or is told so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.domain import progress
from gateway.domain.health_state import State
from gateway.health import engine_look
from simulator import SimVllm
from tests.raw_client import RawClient, chat, raw_client
from tests.support import RunningGateway, running_gateway

FAST = "defaults: {health: {every: 50ms, fail_after: 3, recover_after: 2}}\n"
SOON = 5.0  # seconds


@pytest.fixture(autouse=True)
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything forty times faster."""
    monkeypatch.setattr(progress, "SILENCE_LEAST", 0.5)
    monkeypatch.setattr(progress, "PREFILL_PRIOR", 300.0 * 40)
    monkeypatch.setattr(engine_look, "MOVING", 0.05)


@asynccontextmanager
async def pair(**of_one: float) -> AsyncIterator[tuple[RunningGateway, SimVllm, SimVllm]]:
    one, two = SimVllm("one", **of_one), SimVllm("two")  # type: ignore[arg-type]  # numbers only
    async with one.serve() as first, two.serve() as second:
        routes = (
            f"{FAST}backends: {{one: {{url: '{first}'}}, two: {{url: '{second}'}}}}\naliases: {{chain: [one, two]}}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("one", "two")
            yield gateway, one, two


async def begun(client: RawClient) -> None:
    await client.post("/v1/chat/completions", chat("chain", stream=True))
    await client.until(b'"content":"')


async def test_a_stream_that_has_content_is_ended_and_told_so() -> None:
    async with pair() as (gateway, one, _), raw_client(gateway.url) as client:
        one.fault("hang_mid", after=2)
        await begun(client)
        one.fault("hang_engine")
        await client.rest()
        assert b'"code":"stream_interrupted"' in client.seen
        assert not client.seen.endswith(b"0\r\n\r\n")
        assert one.seen["/health"] > 3
        health = gateway.gateway.fleet["one"].health
        assert (health.state, health.stalls) == (State.DOWN, 1)
        assert "stood still" in health.reason


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_request_that_waits_goes_on_elsewhere(stream: bool) -> None:
    async with pair() as (gateway, one, _):
        one.fault("hang_engine")
        async with asyncio.timeout(SOON):
            reply = await gateway.client.post("/v1/chat/completions", json=chat("chain", stream=stream))
        assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "two")
        assert reply.headers["x-gateway-fallback"] == "failed"
        assert gateway.state("one") is State.DOWN
        assert one.aborted == 1, "it is not left running there"


async def test_all_that_ran_there_ends_at_once_and_is_one_incident() -> None:
    async with pair() as (gateway, one, _):
        one.fault("hang_engine")
        asked = [gateway.client.post("/v1/chat/completions", json=chat("chain")) for _ in range(6)]
        async with asyncio.timeout(SOON):
            replies = await asyncio.gather(*asked)
        assert {reply.headers["x-gateway-backend"] for reply in replies} == {"two"}
        assert gateway.gateway.fleet["one"].health.stalls == 1
        downs = [e for e in gateway.gateway.events if (e.backend, e.after) == ("one", "down")]
        assert len(downs) == 1
        assert "stood still" in downs[0].reason


async def test_an_engine_that_only_computes_prompts_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than it may be silent, with nothing to see but the KV cache's use."""
    monkeypatch.setattr(progress, "PREFILL_PRIOR", 1e9)
    async with pair(prefill=2048 / 0.2) as (gateway, one, _):
        reply = await gateway.client.post("/v1/chat/completions", json=chat("chain", "word " * 16_000))
        assert reply.headers["x-gateway-backend"] == "one"
        assert gateway.state("one") is State.READY
        assert gateway.gateway.fleet["one"].health.stalls == 0
        assert one.seen["/metrics"] > 10


async def test_a_client_that_does_not_read_is_no_evidence_against_the_engine() -> None:
    async with pair(decode=1e6) as (gateway, one, _), raw_client(gateway.url) as client:
        await client.post("/v1/chat/completions", chat("chain", "Say 100000 words", stream=True))
        state = gateway.gateway.fleet["one"]
        await gateway.until(lambda: any(request.timer.writing for request in gateway.requests()))
        looks = one.seen["/metrics"]
        await gateway.until(lambda: one.seen["/metrics"] > looks + 20)
        assert (state.health.state, state.health.stalls) == (State.READY, 0)


async def test_a_stalled_engine_that_moves_again_is_back_after_its_pause() -> None:
    async with pair() as (gateway, one, _):
        one.fault("hang_engine")
        await gateway.client.post("/v1/chat/completions", json=chat("chain"))
        health = gateway.gateway.fleet["one"].health
        assert health.retry_at - health.since == pytest.approx(10.0, abs=0.1)
        one.clear()
        health.retry_at = 0.0
        await gateway.until(lambda: health.half_open)
        reply = await gateway.client.post("/v1/chat/completions", json=chat("chain"))
        assert reply.headers["x-gateway-backend"] == "one"
        one.fault("hang_engine")
        await gateway.client.post("/v1/chat/completions", json=chat("chain"))
        assert health.retry_at - health.since == pytest.approx(20.0, abs=0.1), "it has happened before"


async def test_what_others_run_there_is_counted() -> None:
    async with pair() as (gateway, one, _):
        state = gateway.gateway.fleet["one"]
        assert state.foreign == 0
        one.fault("hang_mid", after=1, path="/v1/chat/completions")
        async with raw_client(one.url) as stranger:
            await stranger.post("/v1/chat/completions", chat("model", stream=True))
            await gateway.until(lambda: state.foreign == 1)
        await gateway.until(lambda: state.foreign == 0)


async def test_the_rates_are_learned() -> None:
    async with pair(prefill=20_000.0, decode=500.0) as (gateway, _, _):
        state = gateway.gateway.fleet["one"]
        await gateway.until(lambda: state.progress.last is not None)
        await gateway.client.post("/v1/chat/completions", json=chat("chain", "word " * 8000))
        await gateway.until(lambda: state.progress.prefill is not None and state.progress.decode is not None)
        assert state.progress.prefill == pytest.approx(20_000, rel=0.3)
        assert state.progress.decode == pytest.approx(500, rel=0.5)
