"""Sequences of others take slots only as long as they are seen: nobody is refused because of those that have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from gateway.admission.slots import look_due, may_be_over
from gateway.domain import progress
from gateway.domain.backend import BackendState
from gateway.domain.progress import Sample
from simulator import SimVllm
from tests.raw_client import chat, raw_client
from tests.routing.parts import backend
from tests.support import RunningGateway, running_gateway

CHAT = "/v1/chat/completions"
STRANGERS = 8


@asynccontextmanager
async def strangers(sim: SimVllm) -> AsyncIterator[None]:
    """Others stream from the engine, until the block is left."""
    async with AsyncExitStack() as stack:
        for _ in range(STRANGERS):
            client = await stack.enter_async_context(raw_client(sim.url))
            await client.post(CHAT, chat("model", stream=True, max_tokens=8000, ignore_eos=True))
            await client.until(b'"content":"')
        yield
    await sim.wait_aborted(STRANGERS)


@asynccontextmanager
async def crowded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RunningGateway, SimVllm, BackendState]]:
    """A gateway whose backend has 4 slots and a queue of 2, and that looks at it only when it has to."""
    monkeypatch.setattr(progress, "LOOKS_AGREE", 0.0)
    sim = SimVllm("model", slots=64, decode=100.0)
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', slots: 4, queue: {{length: 2}}, health: {{every: 60s}}}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            yield gateway, sim, gateway.gateway.fleet["a"]


async def see(gateway: RunningGateway, state: BackendState) -> None:
    for _ in range(2):
        await gateway.gateway.prober.look_at_engine(state)
    assert state.foreign == STRANGERS
    assert state.progress.last is not None
    state.progress.last = replace(state.progress.last, at=state.progress.last.at - 60.0)


async def codes(gateway: RunningGateway, requests: int, **more: object) -> list[int]:
    asked = [gateway.client.post(CHAT, json=chat("a", f"{i}", **more)) for i in range(requests)]
    return sorted(reply.status_code for reply in await asyncio.gather(*asked))


async def test_a_burst_of_others_that_ended_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with crowded(monkeypatch) as (gateway, sim, state):
        async with strangers(sim):
            await see(gateway, state)
        assert await codes(gateway, 6) == [200] * 6
        assert state.foreign == 0


async def test_others_that_are_still_there_take_their_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    async with crowded(monkeypatch) as (gateway, sim, state), strangers(sim):
        await see(gateway, state)
        assert 429 in await codes(gateway, 6)
        assert state.foreign > 0


async def test_an_engine_that_answers_no_look_takes_no_slots_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with crowded(monkeypatch) as (gateway, sim, state), strangers(sim):
        await see(gateway, state)
        gateway.gateway.admission.look = lambda _: None
        assert await codes(gateway, 6) == [200] * 6
        assert state.foreign == 0


async def test_a_request_that_waits_has_the_engine_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async with crowded(monkeypatch) as (gateway, sim, state):
        sim.fault("hang_mid", after=1)
        async with strangers(sim):
            await see(gateway, state)
            first, second = (asyncio.create_task(gateway.client.post(CHAT, json=chat("a", f"{i}"))) for i in range(2))
            await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="a") == 1)
        await sim.wait_inflight(2)  # the second one has its slot, though the first one goes on
        assert state.inflight == 2
        sim.clear()
        for request in (first, second):
            assert (await request).status_code == 200


def test_a_count_is_old_after_a_second_and_taken_again_after_half_of_one() -> None:
    state = backend("a")
    assert not may_be_over(state, 0.0)
    state.foreign = 3
    state.progress.looked_at = 10.0
    state.progress.add(Sample(10.0, running=3.0))
    assert (look_due(state, 10.4), look_due(state, 10.6)) == (False, True)
    assert (may_be_over(state, 11.0), may_be_over(state, 11.1)) == (False, True)
    state.foreign = 0
    assert (look_due(state, 99.0), may_be_over(state, 99.0)) == (False, False)
