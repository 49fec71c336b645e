"""The slots of an engine that nobody declared: as many as it bears, soon after they are needed, and told with why."""

from __future__ import annotations

import asyncio

import pytest

from gateway.health import engine_look
from simulator import SimVllm
from tests.one_backend import one_backend
from tests.raw_client import chat
from tests.support import RunningGateway

CHAT = "/v1/chat/completions"
WITHIN = 10.0  # seconds; of it that the engine is looked at every 5 s while nobody asks
LONG = {"max_tokens": 4000, "ignore_eos": True}


def ask(gateway: RunningGateway, requests: int) -> list[asyncio.Task[int]]:
    async def one(number: int) -> int:
        reply = await gateway.client.post(CHAT, json=chat("a", f"{number}", **LONG))
        return reply.status_code

    return [asyncio.create_task(one(number)) for number in range(requests)]


async def leave(tasks: list[asyncio.Task[int]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def told(gateway: RunningGateway) -> tuple[int, bool, str]:
    backend = (await gateway.client.get("/status")).json()["backends"]["a"]
    return backend["slots"], backend["slots_assumed"], backend["slots_reason"]


async def test_32_streams_all_run_within_10_seconds() -> None:
    sim = SimVllm("a", slots=256, decode=40.0)
    async with one_backend(sim, before="") as gateway:
        await gateway.until_ready("a")
        assert await told(gateway) == (8, True, "assumed: nothing tells how many it bears")
        asked = ask(gateway, 32)
        await sim.wait_inflight(32, WITHIN)
        assert (await told(gateway))[1:] == (False, "learned: it takes so many without queueing")
        assert gateway.metric("gateway_slots_reason", backend="a", reason="rising") == 1
        await leave(asked)


async def test_a_burst_waits_for_what_the_engine_may_bear_instead_of_being_refused() -> None:
    sim = SimVllm("a", slots=256, decode=40.0)
    async with one_backend(sim, "queue: {length: 4}", before="") as gateway:
        await gateway.until_ready("a")
        asked = ask(gateway, 60)
        await sim.wait_inflight(60, WITHIN)
        await leave(asked)


async def test_an_engine_that_queues_gets_what_it_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_look, "MOVING", 0.1)
    sim = SimVllm("a", slots=3, decode=40.0)
    async with one_backend(sim, before="") as gateway:
        await gateway.until_ready("a")
        asked = ask(gateway, 12)
        state = gateway.gateway.fleet["a"]
        await gateway.until(lambda: state.known_slots == 4)
        assert state.slots_why == "queues"
        await leave(asked)


@pytest.mark.parametrize(
    ("keys", "told_as"),
    [
        ("slots: 4", (4, False, "as routes.yaml says")),
        ("slots: auto", (8, True, "assumed: nothing tells how many it bears")),
        ("engine: openai, server: tgi", (8, True, "assumed: nothing tells how many it bears")),
    ],
    ids=["declared", "auto", "an engine that tells nothing"],
)
async def test_where_the_number_comes_from_is_told(keys: str, told_as: tuple[int, bool, str]) -> None:
    sim = SimVllm("a", generic="openai" in keys)
    async with one_backend(sim, keys, before="") as gateway:
        await gateway.until_ready("a")
        assert await told(gateway) == told_as
