"""What a simulated Ollama holds in memory: loads that end with their client, expiry, eviction, the queue."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import httpx
import pytest

from simulator import SimOllama
from tests.simulator.wire import ask, chat
from tests.waiting import until

A, B = "qwen3:8b", "llama3.2:3b"
NEVER = 1e6  # seconds of a load that no test waits for


def body(model: str = A, **more: Any) -> dict[str, Any]:
    return {"model": model, **chat("hi"), "stream": False, **more}


def expiry(entry: dict[str, Any]) -> float:
    return datetime.fromisoformat(entry["expires_at"]).timestamp()


async def test_the_client_that_leaves_takes_its_load_with_it_and_the_next_one_begins_anew() -> None:
    sim = SimOllama(models=[A], load=NEVER)
    async with sim.serve() as url, httpx.AsyncClient() as client:
        first = asyncio.create_task(client.post(f"{url}/api/chat", json=body()))
        await until(lambda: A in sim.loaded)
        loading = (await ask(url, "/api/ps")).json["models"]
        first.cancel()
        await until(lambda: sim.runners.aborted == 1)
        assert ([entry["name"] for entry in loading], sim.loaded) == ([A], {})
        sim.runners.load = 0.0
        assert (await ask(url, "/api/chat", body())).status == 200
    assert sim.loads == 1


async def test_who_waits_for_a_load_that_another_client_leaves_loads_it_anew() -> None:
    sim = SimOllama(models=[A], load=NEVER)
    async with sim.serve() as url, httpx.AsyncClient() as client:
        first = asyncio.create_task(client.post(f"{url}/api/chat", json=body()))
        await until(lambda: A in sim.loaded)
        second = asyncio.create_task(client.post(f"{url}/api/chat", json=body()))
        await sim.wait_inflight(2)
        sim.runners.load = 0.0
        first.cancel()
        assert (await second).status_code == 200
    assert (sim.loads, sim.runners.aborted) == (1, 1)


async def test_an_expiry_is_counted_from_the_last_use_and_keeps_its_duration() -> None:
    async with SimOllama(models=[A]).serve() as url:
        await ask(url, "/api/chat", body(keep_alive="30m"))
        (first,) = (await ask(url, "/api/ps")).json["models"]
        await ask(url, "/api/chat", body())
        (second,) = (await ask(url, "/api/ps")).json["models"]
        await ask(url, "/api/chat", body(keep_alive=60))
        (third,) = (await ask(url, "/api/ps")).json["models"]
    assert expiry(second) > expiry(first), "half an hour from the second use on"
    assert expiry(third) - expiry(first) < -1500


async def test_another_window_or_another_shift_loads_it_again() -> None:
    sim = SimOllama(models=[A], version="0.33.0")
    async with sim.serve() as url:
        for more in ({}, {"shift": False}, {"shift": False}, {}, {"options": {"num_ctx": 8192}}):
            await ask(url, "/api/chat", body(**more))
    assert sim.loads == 4


async def test_names_of_one_file_of_weights_share_a_runner() -> None:
    sim = SimOllama(models=[A, B])
    sim.runners.weights = {A: "blob", B: "blob"}
    async with sim.serve() as url:
        await ask(url, "/api/chat", body(A))
        await ask(url, "/api/chat", body(B))
        assert [entry["name"] for entry in (await ask(url, "/api/ps")).json["models"]] == [A]
    assert sim.loads == 1


async def test_a_model_is_evicted_when_it_computes_no_more() -> None:
    sim = SimOllama(models=[A, B], slots=4)
    sim.runners.most = 1
    async with sim.serve() as url, httpx.AsyncClient() as client:
        sim.fault("hang_mid", after=1, count=1)
        running = asyncio.create_task(client.post(f"{url}/api/chat", json=body(A)))
        await until(lambda: A in sim.runners.loaded and bool(sim.runners.loaded[A].users))
        other = asyncio.create_task(client.post(f"{url}/api/chat", json=body(B)))
        await sim.wait_inflight(2)
        behind = asyncio.create_task(client.post(f"{url}/api/chat", json=body(A)))
        await sim.wait_inflight(3)
        assert (list(sim.loaded), other.done(), behind.done()) == ([A], False, False)
        running.cancel()
        assert ((await other).status_code, (await behind).status_code) == (200, 200)
    assert sim.loads == 3


@pytest.mark.parametrize("loaded", [True, False])
async def test_the_queue_counts_only_requests_that_need_a_load(loaded: bool) -> None:
    sim = SimOllama(models=[A])
    sim.runners.queue = 1
    async with sim.serve() as url, httpx.AsyncClient() as client:
        if loaded:
            await ask(url, "/api/chat", body())
        else:
            sim.runners.load = 0.2
        replies = await asyncio.gather(*(client.post(f"{url}/api/chat", json=body()) for _ in range(4)))
    refused = [reply for reply in replies if reply.status_code == 503]
    assert len(refused) == (0 if loaded else 3)
    assert all(reply.json()["error"].startswith("server busy") for reply in refused)
