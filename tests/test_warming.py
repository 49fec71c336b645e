"""From nothing to ready: a port that opens late, a warm-up, a canary; and what a failing canary means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.backend import BackendState
from gateway.compat.observation import Observation
from gateway.config.load import load_text
from gateway.fleet import Fleet
from gateway.health.events import Event
from gateway.health.exporter import Machine
from gateway.health.proof import outcome_of
from gateway.health.standby import Standby
from gateway.health.state import State
from gateway.sim import SimOllama, SimVllm
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

QWEN36 = "RedHatAI/Qwen3.6-35B-A3B-NVFP4"
FAST = "defaults: {health: {every: 50ms, fail_after: 3, recover_after: 2, canary: 1h}}\n"
ASKED = 4  # requests of a canary at a recovery: the warm-up and three checks


def sim_of(name: str = "a", **more: object) -> SimVllm:
    return SimVllm(name, served=[QWEN36], tool_parser="qwen3_coder", reasoning_parser="qwen3", **more)  # type: ignore[arg-type]  # keywords of SimVllm


@asynccontextmanager
async def one(sim: SimVllm, more: str = "", *, running: bool = True) -> AsyncIterator[RunningGateway]:
    await sim.start(running=running)
    try:
        async with running_gateway(f"{FAST}backends: {{a: {{url: '{sim.url}'{more}}}}}") as gateway:
            yield gateway
    finally:
        await sim.stop()


async def ask(gateway: RunningGateway, model: str = "a") -> httpx.Response:
    return await gateway.client.post("/v1/chat/completions", json=chat(model))


def story(gateway: RunningGateway, backend: str = "a") -> list[str]:
    """The states that it has been in, from its events."""
    return [e.after for e in gateway.gateway.events if (e.kind, e.backend) == ("state", backend)]


async def canaried(gateway: RunningGateway, sim: SimVllm, asked: int) -> None:
    await gateway.until(lambda: len(sim.requests) >= asked and sim.inflight == 0 and gateway.idle())


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


async def test_what_fell_comes_back_by_itself_after_good_checks_and_a_canary() -> None:
    sim = sim_of()
    async with one(sim) as gateway:
        await gateway.until_ready("a")
        await canaried(gateway, sim, 2)
        await sim.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        sim.requests.clear()
        await sim.revive()
        await gateway.until_ready("a")
        assert len(sim.requests) == ASKED
        assert story(gateway) == ["ready", "suspect", "down", "warming", "ready"]
        reasons = [e.reason for e in gateway.gateway.events if e.kind == "state"]
        assert reasons[-2:] == ["2 good health checks; a canary decides", "passed its canary"]


async def test_a_hung_engine_is_not_used_again_before_its_canary_is_answered() -> None:
    """Its /health is green all the time."""
    sim = sim_of()
    async with one(sim, ", timeouts: {first_byte: 200ms}") as gateway:
        await gateway.until_ready("a")
        await canaried(gateway, sim, 2)
        sim.fault("hang_engine")
        state = gateway.gateway.fleet["a"]
        state.stalled("its engine stood still")
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
        health = gateway.gateway.fleet["a"].health
        health.backoff = 0.05
        sim.fault("status", status=500, count=3)
        for _ in range(3):
            await ask(gateway)
        assert gateway.state("a") is State.DOWN
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
        await gateway.until(lambda: "tool_auto" in gateway.gateway.fleet["a"].observed)
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


async def test_it_is_asked_again_when_it_is_idle_and_not_while_it_is_busy() -> None:
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


# -- events -----------------------------------------------------------------------------------------------------------


async def test_who_listens_is_told_of_every_event() -> None:
    sim = sim_of()
    async with one(sim) as gateway:
        await gateway.until_ready("a")
        heard: list[Event] = []
        gateway.gateway.on_event.append(heard.append)
        await sim.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        assert [(e.before, e.after) for e in heard if e.kind == "state"] == [("ready", "suspect"), ("suspect", "down")]
        assert all(e.at > 1.7e9 and e.reason for e in heard if e.kind == "state")


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
    async with two_nodes("1h") as (gateway, _, right, _):
        await gateway.until(gateway.idle)
        await right.kill()
        await gateway.until(lambda: gateway.state("both") is State.DOWN)
        await gateway.until_ready("both")
        assert gateway.state("right") is State.DOWN
        checks = right.seen["/health"]
        await asyncio.sleep(0)
        assert checks == right.seen["/health"]
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
                await gateway.gateway.prober.standby.look(0.0)
                assert not small.loaded
            assert (await ask(gateway, "chain")).headers["x-gateway-backend"] == "small"
            await big.revive()
            await gateway.until_ready("big")
            if loaded:
                await gateway.until(lambda: not small.loaded)
            else:
                await gateway.gateway.prober.standby.look(0.0)
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
            standby = gateway.gateway.prober.standby
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


@pytest.mark.parametrize(
    ("was_free", "is_free", "size", "fits"),
    [(20, 40, 6, True), (5, 40, 6, False), (40, 5, 6, False), (None, 40, 6, False), (40, 40, None, False)],
    ids=["room", "none while the engine ran", "none now", "never seen well", "size unknown"],
)
async def test_room_is_what_was_free_beside_the_engine_and_is_free_now(
    was_free: float | None, is_free: float, size: int | None, fits: bool
) -> None:
    class Sizes:
        async def size(self, state: BackendState) -> int | None:
            return None if size is None else size << 30

        async def has_loaded(self, state: BackendState) -> bool:
            return False

        async def load(self, state: BackendState, keep_alive: str | int) -> bool:
            return True

    routes = "backends:\n  big: {url: 'http://10.0.0.1:1', node: n1}\n"
    routes += "  small: {engine: ollama, url: 'http://10.0.0.1:2', model: m, node: n1}\nnodes: {n1: {}}\n"
    routes += "aliases: {chain: [big, small]}\n"
    snapshot = load_text(routes, "routes.yaml", {}).snapshot
    fleet = Fleet(lambda _: None, lambda _: None, lambda _: None)
    fleet.apply(snapshot)
    fleet["big"].health.state, fleet["small"].health.state = State.DOWN, State.READY
    gib = float(1 << 30)
    machines = {"n1": Machine(0.0, there=True, memory_total=128 * gib, memory_used=(128 - is_free) * gib)}
    standby = Standby(fleet, Sizes(), machines)
    standby.take(snapshot)
    if was_free is not None:
        standby.free["big"] = was_free * gib
    await standby.look(100.0)
    assert (standby.ours == {"small": 100.0}) is fits


# -- an operator ------------------------------------------------------------------------------------------------------


async def test_a_drain_ends_what_runs_and_takes_nothing_new_until_it_is_resumed() -> None:
    sim, other = sim_of(), sim_of("b")
    async with sim.serve() as first, other.serve() as second:
        routes = (
            f"{FAST.replace('1h', 'none')}backends: {{a: {{url: '{first}'}}, b: {{url: '{second}'}}}}\n"
            "aliases: {chain: [a, b]}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            sim.fault("hang_before_content", count=1)
            running = asyncio.create_task(ask(gateway, "chain"))
            await sim.wait_inflight(1)
            drained = (await gateway.client.post("/admin/backends/a/drain")).json()
            assert drained == {
                "backend": "a", "state": "draining", "reason": "drained by an operator", "inflight": 1
            }  # fmt: skip
            spilled = await ask(gateway, "chain")
            assert (spilled.headers["x-gateway-backend"], spilled.headers["x-gateway-fallback"]) == ("b", "draining")
            refused = (await ask(gateway, "a")).json()["error"]
            assert refused["code"] == "no_backend_available"
            assert "a is draining" in refused["message"]
            sim.clear()
            assert (await running).headers["x-gateway-backend"] == "a", "what ran there has ended there"
            assert gateway.state("a") is State.DRAINING
            assert gateway.metric("gateway_backend_state", backend="a", state="draining") == 1
            resumed = (await gateway.client.post("/admin/backends/a/resume")).json()
            assert (resumed["state"], resumed["inflight"]) == ("ready", 0)
            assert (await ask(gateway, "chain")).headers["x-gateway-backend"] == "a"


@pytest.mark.parametrize("action", ["drain", "resume"])
async def test_draining_is_for_those_who_may_probe(action: str) -> None:
    sim = sim_of()
    async with sim.serve() as url:
        keys = "clients: {ops: {key: ops-key-1, admin: true}, agent: {key: agent-key-2}}"
        async with running_gateway(f"backends: {{a: {{url: '{url}'}}}}\n{keys}") as gateway:
            path = f"/admin/backends/a/{action}"
            found = []
            for key in ("nobody", "agent-key-2", "ops-key-1"):
                reply = await gateway.client.post(path, headers={"authorization": f"Bearer {key}"})
                found.append(reply.status_code)
            assert found == [401, 403, 200]
            missing = await gateway.client.post(
                f"/admin/backends/b/{action}", headers={"authorization": "Bearer ops-key-1"}
            )
            assert missing.status_code == 404
