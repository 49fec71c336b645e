"""The engine of a llama-server: its slots and who uses them, its one memory, a hang, its router, its connections."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.domain.health_state import State
from tests.support import RunningGateway, running_gateway
from tests.waiting import pace, until_said

from .conftest import Start
from .processes import RealServer
from .questions import COUNT, COUNT_SAID, NO_THOUGHTS, SING, user

CHAT = "/v1/chat/completions"
WITHIN = 25.0  # seconds from the hang to the client's answer
KEEP_ALIVE = 5.0  # seconds after which it closes an idle connection
KEPT = 100  # requests after which it closes a connection
ATTACH, DETACH = 16, 17  # of ptrace


def song(tokens: int, model: str = "a", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": user(SING), "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}


def count(model: str = "a", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": user(COUNT), "temperature": 0, "max_tokens": 40, **NO_THOUGHTS, **more}


def routes(server: RealServer, more: str = "", before: str = "health: {every: 500ms}") -> str:
    return f"defaults: {{{before}}}\nbackends: {{a: {{engine: llamacpp, url: '{server.url}'{more}}}}}"


async def looked_at(gateway: RunningGateway) -> Any:
    """The backend's state, once its slots were read."""
    state = gateway.gateway.fleet["a"]
    await gateway.until_ready("a")
    await gateway.until(lambda: state.progress.last is not None)
    return state


@pytest.mark.parametrize(
    ("flags", "slots", "window", "pool"),
    [
        (("-c", "4096"), 4, 4096, 4096),
        (("-c", "4096", "-np", "2"), 2, 2048, None),
        (("-c", "4096", "-np", "1"), 1, 4096, None),
        (("-c", "4096", "--no-slots", "--metrics"), 4, 4096, None),
    ],
    ids=["as it is", "two slots", "one slot", "no /slots"],
)
async def test_its_window_its_slots_and_its_memory_are_read(
    start: Start, flags: tuple[str, ...], slots: int, window: int, pool: int | None
) -> None:
    async with running_gateway(routes(start("llama", *flags))) as gateway:
        state = await looked_at(gateway)
        assert (state.slots, state.window(time.monotonic()), state.pool) == (slots, window, pool)


async def test_slots_that_hold_more_than_one_window_share_no_memory(start: Start) -> None:
    """`-np 4` looks like the default until then."""
    server = start("llama", "-c", "4096", "-np", "4")
    async with running_gateway(routes(server)) as gateway:
        state = await looked_at(gateway)
        assert (state.slots, state.pool) == (4, 1024)
        bodies = [song(800, messages=user(SING + " " * n)) for n in range(3)]
        for body in bodies:
            await gateway.client.post(server.url + CHAT, json={**body, "id_slot": bodies.index(body)})
        await gateway.until(lambda: state.pool is None)


async def test_requests_that_would_fill_the_memory_together_are_all_answered(llama: RealServer) -> None:
    async with running_gateway(routes(llama)) as gateway:
        state = await looked_at(gateway)
        asks = [gateway.client.post(CHAT, json=song(1500, stream=n % 2 == 1)) for n in range(5)]
        answers = await asyncio.gather(*asks)
        assert [answer.status_code for answer in answers] == [200] * 5
        assert [answer.headers["x-gateway-attempts"] for answer in answers] == ["1"] * 5
        assert all(b"error" not in answer.content for answer in answers)
        assert (state.health.state, state.health.fails, state.reserved_tokens) == (State.READY, 0, 0)


async def test_a_memory_that_others_fill_is_a_pause_and_never_a_failure(llama: RealServer) -> None:
    async with running_gateway(routes(llama)) as gateway:
        state = await looked_at(gateway)

        async def other() -> httpx.Response:
            return await gateway.client.post(llama.url + CHAT, json=song(3500))

        others = [asyncio.create_task(other()) for _ in range(2)]
        ours = [asyncio.create_task(gateway.client.post(CHAT, json=song(1500))) for _ in range(2)]
        assert 500 in [answer.status_code for answer in await asyncio.gather(*others)]
        assert [answer.status_code for answer in await asyncio.gather(*ours)] == [200, 200]
        assert (state.health.state, state.health.fails) == (State.READY, 0)


async def test_requests_of_others_are_seen(llama: RealServer) -> None:
    async with running_gateway(routes(llama)) as gateway:
        state = await looked_at(gateway)
        singing = True

        async def other() -> None:
            while singing:
                await gateway.client.post(llama.url + CHAT, json=song(3000))

        direct = asyncio.create_task(other())
        await gateway.until(lambda: state.foreign == 1)
        singing = False
        await direct
        await gateway.until(lambda: state.foreign == 0)


# -- a hang ------------------------------------------------------------------------------------------------------------


@contextmanager
def engine_stopped(server: RealServer) -> Iterator[None]:
    """Its main thread, which computes, stands still; those that answer /health go on."""
    assert server.process is not None
    thread, libc = engine_of(server), ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ATTACH, thread, 0, 0) != 0:
        pytest.skip(f"this machine lets nobody stop a thread: {os.strerror(ctypes.get_errno())}")
    os.waitpid(thread, 0x40000000)  # __WALL
    try:
        yield
    finally:
        libc.ptrace(DETACH, thread, 0, 0)


def engine_of(server: RealServer) -> int:
    """The process that `nice` and serve.sh became."""
    assert server.process is not None
    return server.process.pid


async def test_a_hung_engine_is_left_within_25_seconds_and_used_again_when_it_moves(start: Start) -> None:
    server, spare = start("llama", "-c", "4096"), start("llama", "-c", "4096")
    text = routes(server, before="").replace("}}", f"}}, b: {{engine: llamacpp, url: '{spare.url}'}}}}", 1)
    text = text.replace("defaults: {}\n", "") + "\naliases: {front: [a, b]}"
    async with running_gateway(text) as gateway:
        state = await looked_at(gateway)
        with engine_stopped(server):
            began = time.monotonic()
            ask = asyncio.create_task(gateway.client.post(CHAT, json=count("front"), timeout=60))
            answer = await ask
            assert time.monotonic() - began < WITHIN
            assert (answer.status_code, answer.headers["x-gateway-backend"]) == (200, "b")
            assert "answered no look" in state.health.reason
            assert (await gateway.client.get(server.url + "/health")).status_code == 200

        async def from_it() -> bool:
            answer = await gateway.client.post(CHAT, json=count("front"))
            return answer.headers["x-gateway-backend"] == "a"

        await until_said(from_it, within=60)


# -- connections -------------------------------------------------------------------------------------------------------


async def test_no_request_is_lost_where_it_closes_connections(llama: RealServer) -> None:
    async with running_gateway(routes(llama)) as gateway:
        await looked_at(gateway)
        for _ in range(KEPT + 20):
            answer = await gateway.client.post(CHAT, json=count())
            assert (answer.status_code, answer.headers["x-gateway-attempts"]) == (200, "1")
        for rest in (KEEP_ALIVE - 0.05, KEEP_ALIVE, KEEP_ALIVE + 0.5):
            await pace(rest)  # its keep-alive is real time
            asks = [gateway.client.post(CHAT, json=count()) for _ in range(4)]
            for answer in await asyncio.gather(*asks):
                assert (answer.status_code, answer.headers["x-gateway-attempts"]) == (200, "1")


async def test_a_killed_server_is_left_and_used_again_after_its_restart(start: Start) -> None:
    server = start("llama", "-c", "4096")
    async with running_gateway(routes(server)) as gateway:
        await looked_at(gateway)
        ask = asyncio.create_task(gateway.client.post(CHAT, json=song(3500)))
        state = gateway.gateway.fleet["a"]
        await gateway.until(lambda: state.inflight == 1)
        server.send(signal.SIGKILL)
        assert (await ask).status_code in (502, 503)
        await gateway.until(lambda: state.health.state is State.DOWN)
        server.up()
        await gateway.until_ready("a")
        assert (await gateway.client.post(CHAT, json=count())).status_code == 200


# -- as a router -------------------------------------------------------------------------------------------------------


@pytest.fixture
def models(engines: Path, tmp_path: Path) -> Path:
    for name in ("one", "two"):
        shutil.copy(engines / "taught.gguf", tmp_path / f"{name}.gguf")
    return tmp_path


async def test_a_router_loads_for_a_request_and_for_nothing_else(start: Start, models: Path) -> None:
    server = start("llama", "--models-dir", str(models), "-c", "4096", ROUTER="1")
    every = "health: {every: 300ms, canary: 300ms}"
    async with running_gateway(routes(server, ", model: one", every)) as gateway:
        await gateway.until_ready("a")
        state = gateway.gateway.fleet["a"]
        await gateway.until(lambda: state.reported.loaded is False)

        async def statuses() -> dict[str, str]:
            cards = (await gateway.client.get(server.url + "/v1/models")).json()["data"]
            return {card["id"]: card["status"]["value"] for card in cards}

        await pace(2.0)  # some looks, and the time of some canaries
        assert set((await statuses()).values()) == {"unloaded"}
        answer = await gateway.client.post(CHAT, json=count())
        assert answer.json()["choices"][0]["message"]["content"] == COUNT_SAID
        found = await statuses()
        assert (found["one"], found["two"]) == ("loaded", "unloaded")
        with contextlib.suppress(TimeoutError):
            await gateway.until(lambda: state.reported.loaded is True)
        assert state.reported.loaded is True
