"""Engines that share nodes: what falls with one, and which fallback is loaded ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.apps.standby.standby import LOOK, SELDOM, WarmStandby
from gateway.config.load import load_text
from gateway.domain.backend import BackendState
from gateway.domain.fleet import Fleet
from gateway.domain.health_state import State
from gateway.health.nodes import Machine
from gateway.health.ollama_loader import OllamaLoader
from simulator import SimOllama, SimVllm
from tests.support import RunningGateway, running_gateway
from tests.warming import FAST, ask, sim_of, story

# -- two nodes --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def two_nodes(canary: str) -> AsyncIterator[tuple[RunningGateway, SimVllm, SimVllm, SimVllm]]:
    left, right, both = sim_of("left"), sim_of("right"), sim_of("both")
    async with left.serve() as first, right.serve() as second, both.serve() as third:
        routes = (
            f"{FAST.replace('1h', canary)}backends:\n"
            f"  left: {{url: '{first}', node: n1}}\n"
            f"  right: {{url: '{second}', node: n2}}\n"
            f"  both: {{url: '{third}', node: [n1, n2]}}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("left", "right", "both")
            yield gateway, left, right, both


async def test_an_engine_over_two_nodes_falls_with_one_and_returns_with_it() -> None:
    async with two_nodes("none") as (gateway, _, right, both):
        await right.kill()
        await gateway.until(lambda: gateway.state("both") is State.DOWN)
        assert gateway.gateway.fleet["both"].health.reason == "its node n2 is down"
        assert gateway.state("left") is State.READY
        checks = both.seen["/health"]
        await gateway.until(lambda: both.seen["/health"] > checks + 5)
        assert gateway.state("both") is State.DOWN, "its own /health is green"
        await right.revive()
        await gateway.until_ready("both", "right")


async def test_a_canary_shows_that_the_node_is_not_needed_or_not_down() -> None:
    """Whoever stops the small ones to make room for the large one."""
    async with two_nodes("1h") as (gateway, _, right, both):
        await gateway.until(gateway.idle)
        await right.kill()
        await gateway.until(lambda: gateway.state("both") is State.DOWN)
        await gateway.until_ready("both")
        checks = both.seen["/health"]
        await gateway.until(lambda: both.seen["/health"] > checks + 5)
        assert (gateway.state("right"), gateway.state("both")) == (State.DOWN, State.READY), "and so it stays"
        assert story(gateway, "both")[-3:] == ["down", "warming", "ready"]


# -- fallbacks that load ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("node", "loaded"), [("n2", True), ("n1", False)], ids=["another node", "the same node"])
async def test_a_fallback_on_another_node_is_loaded_ahead_and_unloaded_at_failback(node: str, loaded: bool) -> None:
    big, small = sim_of("big"), SimOllama("small", models=["qwen3:8b"])
    async with big.serve() as first, small.serve() as second:
        routes = (
            f"{FAST.replace('1h', 'none')}backends:\n"
            f"  big: {{url: '{first}', node: n1}}\n"
            f"  small: {{engine: ollama, url: '{second}', node: {node}, model: 'qwen3:8b', context: 8192}}\n"
            "aliases: {chain: [big, small]}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("big", "small")
            await big.kill()
            await gateway.until(lambda: gateway.state("big") is State.DOWN)
            if loaded:
                await gateway.until(lambda: small.loaded.get("qwen3:8b", (0, 0.0))[0] == 8192)
            else:
                await gateway.gateway.apps.standby.look(0.0)
                assert not small.loaded
            assert (await ask(gateway, "chain")).headers["x-gateway-backend"] == "small"
            await big.revive()
            await gateway.until_ready("big")
            if loaded:
                await gateway.until(lambda: not small.loaded)
            else:
                await gateway.gateway.apps.standby.look(0.0)
                assert small.loaded, "it was not us who loaded it"


@asynccontextmanager
async def exporter(total: float, used: float) -> AsyncIterator[str]:
    """A machine's exporter that always says the same. Yields its address."""
    page = f"node_memory_MemTotal_bytes {total}\nnode_memory_MemAvailable_bytes {total - used}\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(page), page))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"


@pytest.mark.parametrize(("used", "loaded"), [(20e9, True), (125e9, False)], ids=["room for both", "no room"])
async def test_on_the_same_node_it_is_loaded_ahead_where_the_exporter_showed_room_for_both(
    used: float, loaded: bool
) -> None:
    big, small = sim_of("big"), SimOllama("small", models=["qwen3:8b"])
    async with big.serve() as first, small.serve() as second, exporter(128e9, used) as metrics:
        routes = (
            f"{FAST.replace('1h', 'none')}nodes: {{n1: {{exporter: '{metrics}'}}}}\nbackends:\n"
            f"  big: {{url: '{first}', node: n1}}\n"
            f"  small: {{engine: ollama, url: '{second}', node: n1, model: 'qwen3:8b', context: 8192}}\n"
            "aliases: {chain: [big, small]}\n"
        )
        async with running_gateway(routes) as gateway:
            standby = gateway.gateway.apps.standby
            await gateway.until_ready("big", "small")
            await gateway.until(lambda: standby.free.get("big") == 128e9 - used)
            await big.kill()
            await gateway.until(lambda: gateway.state("big") is State.DOWN)
            if loaded:
                await gateway.until(lambda: "qwen3:8b" in small.loaded)
            else:
                await standby.look(0.0)
                assert not small.loaded
            await big.revive()
            await gateway.until_ready("big")
            await gateway.until(lambda: not small.loaded)


class Sizes(OllamaLoader):
    """A loader of a model of so many GiB."""

    def __init__(self, size: int | None) -> None:
        self._size = size

    async def size(self, state: BackendState) -> int | None:
        return None if self._size is None else self._size << 30

    async def has_loaded(self, state: BackendState) -> bool:
        return False

    async def load(self, state: BackendState, keep_alive: str | int) -> bool:
        return True


@pytest.mark.parametrize(
    ("was_free", "is_free", "size", "fits"),
    [(20, 40, 6, True), (5, 40, 6, False), (40, 5, 6, False), (None, 40, 6, False), (40, 40, None, False)],
    ids=["room", "none while the engine ran", "none now", "never seen well", "size unknown"],
)
async def test_room_is_what_was_free_beside_the_engine_and_is_free_now(
    was_free: float | None, is_free: float, size: int | None, fits: bool
) -> None:
    routes = "backends:\n  big: {url: 'http://10.0.0.1:1', node: n1}\n"
    routes += "  small: {engine: ollama, url: 'http://10.0.0.1:2', model: m, node: n1}\nnodes: {n1: {}}\n"
    routes += "aliases: {chain: [big, small]}\n"
    snapshot = load_text(routes, "routes.yaml", {}).snapshot
    fleet = Fleet(lambda _: None)
    fleet.apply(snapshot)
    fleet["big"].health.state, fleet["small"].health.state = State.DOWN, State.READY
    gib = float(1 << 30)
    machines = {"n1": Machine(0.0, there=True, memory_total=128 * gib, memory_used=(128 - is_free) * gib)}
    standby = WarmStandby(fleet, lambda: snapshot, Sizes(size), machines)
    if was_free is not None:
        standby.free["big"] = was_free * gib
    await standby.look(100.0)
    assert (standby.loaded == {"small": 100.0}) is fits


@pytest.mark.parametrize(("engine", "pause"), [("vllm", SELDOM), ("ollama", LOOK)])
async def test_a_fleet_without_a_backend_that_loads_on_demand_is_looked_at_seldom(
    monkeypatch: pytest.MonkeyPatch, engine: str, pause: float
) -> None:
    fleet = Fleet(lambda _: None)
    snapshot = load_text(f"backends: {{a: {{engine: {engine}, url: 'http://10.0.0.1:1', model: m}}}}").snapshot
    fleet.apply(snapshot)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr("gateway.apps.standby.standby.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await WarmStandby(fleet, lambda: snapshot, Sizes(6), {}).run()
    assert pauses == [pause] * 3
