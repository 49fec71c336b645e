"""A server that accepts connections and answers nothing is left at its first check: by the requests that wait there
without a byte, by those in its queue, and by those that come; nobody is refused because of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.domain.health_state import WELL, State
from gateway.health import probe_client, prober
from simulator import SimVllm
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway, from_clients, running_gateway

CHAT = "/v1/chat/completions"
SOON = 8.0  # seconds
SLOTS, LENGTH = 2, 2


@pytest.fixture(autouse=True)
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_client, "PROBE_TIMEOUT", 0.3)
    monkeypatch.setattr(prober, "QUIET", 0.3)


@asynccontextmanager
async def pair(
    steps: str = "[a, b]", every: str = "200ms", **of_one: float
) -> AsyncIterator[tuple[RunningGateway, SimVllm, SimVllm]]:
    one, two = SimVllm("one", **of_one), SimVllm("two", slots=64)  # type: ignore[arg-type]  # numbers only
    async with one.serve() as first, two.serve() as second:
        routes = (
            f"defaults: {{health: {{every: {every}}}}}\n"
            f"backends:\n  a: {{url: '{first}', slots: {SLOTS}, queue: {{length: {LENGTH}}}}}\n"
            f"  b: {{url: '{second}', slots: 64}}\naliases: {{chain: {steps}}}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            yield gateway, one, two


def hang(sim: SimVllm) -> None:
    """From now on it accepts connections, and sends nothing."""
    for path in ("/health", "/metrics", "/version", "/v1/models"):
        sim.fault("hang_health", path=path)
    sim.fault("hang_before")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("steps", ["[a, b]", "[[a, b]]"], ids=["steps", "side by side"])
async def test_its_first_caller_goes_on_elsewhere_at_the_first_failed_check(steps: str, stream: bool) -> None:
    async with pair(steps) as (gateway, one, _):
        hang(one)
        async with asyncio.timeout(SOON):
            replies = await asyncio.gather(
                *(gateway.client.post(CHAT, json=chat("chain", f"{i}", stream=stream)) for i in range(4))
            )
        assert {(reply.status_code, reply.headers["x-gateway-backend"]) for reply in replies} == {(200, "b")}
        assert not gateway.gateway.fleet["a"].health.from_requests, "its checks have found it, and that counts once"


async def test_a_request_that_has_nowhere_to_go_waits_on() -> None:
    async with pair("[a]") as (gateway, one, _):
        hang(one)
        request = asyncio.create_task(gateway.client.post(CHAT, json=chat("chain")))
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        assert gateway.gateway.fleet["a"].inflight == 1
        one.clear()
        async with asyncio.timeout(SOON):
            assert (await request).headers["x-gateway-backend"] == "a"


async def test_nobody_is_refused_because_of_it() -> None:
    """Its slots and its queue are full long before its next check."""
    async with pair(every="30s") as (gateway, one, two):
        state = gateway.gateway.fleet["a"]
        hang(one)
        state.evidence.alive_at -= 60.0
        async with asyncio.timeout(SOON):
            asked = [gateway.client.post(CHAT, json=chat("chain", f"{i}")) for i in range(3 * (SLOTS + LENGTH))]
            replies = await asyncio.gather(*asked)
        assert {(reply.status_code, reply.headers["x-gateway-backend"]) for reply in replies} == {(200, "b")}
        assert len(from_clients(two.requests)) == len(replies)


async def test_a_full_queue_of_a_server_that_answers_refuses_as_ever() -> None:
    async with pair(every="30s") as (gateway, one, _):
        state = gateway.gateway.fleet["a"]
        one.fault("hang_before")
        asked = [
            asyncio.create_task(gateway.client.post(CHAT, json=chat("chain", f"{i}"))) for i in range(SLOTS + LENGTH)
        ]
        await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="a") == LENGTH)
        state.evidence.alive_at -= 60.0
        reply = await gateway.client.post(CHAT, json=chat("chain", "one more"))
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert time.monotonic() - state.evidence.alive_at < SOON, "it was checked before"
        assert gateway.state("a") is State.READY
        one.clear()
        assert {reply.status_code for reply in await asyncio.gather(*asked)} == {200}


async def test_it_is_down_soon_after_it_is_suspected() -> None:
    """However seldom it is checked while it is well."""
    async with pair(every="30s") as (gateway, one, _):
        hang(one)
        gateway.gateway.prober.hurry(gateway.gateway.fleet["a"])
        await gateway.until(lambda: gateway.state("a") is State.SUSPECT)
        async with asyncio.timeout(SOON):
            await gateway.until(lambda: gateway.state("a") is State.DOWN)


async def test_while_it_is_suspected_requests_go_elsewhere_and_come_back_when_it_answers() -> None:
    async with pair() as (gateway, one, _):
        hang(one)
        await gateway.until(lambda: gateway.state("a") is State.SUSPECT)
        reply = await gateway.client.post(CHAT, json=chat("chain"))
        assert (reply.headers["x-gateway-backend"], "x-gateway-retries" in reply.headers) == ("b", False)
        assert from_clients(one.requests) == []
        one.clear()
        await gateway.until_ready("a")
        assert (await gateway.client.post(CHAT, json=chat("chain"))).headers["x-gateway-backend"] == "a"


async def test_a_server_that_still_streams_is_not_suspected() -> None:
    async with pair(decode=40.0) as (gateway, one, _), raw_client(gateway.url) as client:
        await client.post(CHAT, chat("chain", stream=True, max_tokens=400, ignore_eos=True))
        await client.until(b'"content":"')
        one.fault("hang_health")
        waiting = asyncio.create_task(gateway.client.post(CHAT, json=chat("chain", "Say 100 words")))
        before = one.seen["/health"]
        await gateway.until(lambda: one.seen["/health"] >= before + 3)
        assert gateway.state("a") in WELL
        assert (await waiting).headers["x-gateway-backend"] == "a"


async def test_a_server_that_answers_nothing_while_it_computes_keeps_its_requests() -> None:
    """Such as a speech server of one thread: its checks say no more than that it is busy."""
    async with pair() as (gateway, one, _):
        state = gateway.gateway.fleet["a"]
        state.traits = replace(state.traits, answers_late=True)
        hang(one)
        waiting = asyncio.create_task(gateway.client.post(CHAT, json=chat("chain")))
        before = one.seen["/health"]
        await gateway.until(lambda: one.seen["/health"] >= before + 3)
        assert (state.inflight, state.health.silent) == (1, False)
        one.clear()
        assert (await waiting).headers["x-gateway-backend"] == "a"


async def test_a_gateway_that_was_busy_itself_suspects_nobody_the_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(every="30s") as (gateway, one, _):
        state = gateway.gateway.fleet["a"]
        monkeypatch.setattr(prober, "OWN_LAG", 0.0)
        monkeypatch.setattr(prober, "QUIET", 0.01)  # the check takes longer: as if this process had not run meanwhile
        state.last_event = time.monotonic()
        one.fault("hang_health")
        await gateway.gateway.prober.check(state, read_models=False)
        assert gateway.state("a") is State.READY
