"""What a request takes it gives back, however it ends; and a busy step is not left for the next one."""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import AsyncExitStack
from random import Random

import httpx

from gateway.admission.slots import Admission
from gateway.metrics.registry import Metrics
from gateway.routing.plan import Candidate
from simulator import SimVllm
from tests.raw_client import RawClient, chat, raw_client
from tests.routing.parts import backend, request
from tests.support import RunningGateway, running_gateway
from tests.waiting import pace, turns

CHAT = "/v1/chat/completions"
REQUESTS = 1000
AT_A_TIME = 24
FAULTS = ["status", "die_before", "die_mid", "end_without_finish", "error_event", "empty_turn", "abort", "slow"]
LEAVE = [RawClient.close, RawClient.reset, RawClient.half_close]


class Crowd:
    """Clients that behave, misbehave and leave, by a fixed seed."""

    def __init__(self, gateway: RunningGateway, sims: list[SimVllm]) -> None:
        self.gateway = gateway
        self.sims = sims
        self.random = Random(7)
        self.places = asyncio.Semaphore(AT_A_TIME)
        self.left = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(REQUESTS):
                group.create_task(self.one())

    async def one(self) -> None:
        async with self.places:
            roll = self.random.random()
            if roll < 0.3:
                await self.leave()
                return
            if roll < 0.6:
                sim = self.random.choice(self.sims)
                sim.fault(self.random.choice(FAULTS), count=1, after=self.random.randrange(4), delay=0.01)
            if roll > 0.95:
                await self.gateway.client.post(CHAT, content=self.random.choice([b"", b"{", b'{"model": "x"}']))
                return
            stream = self.random.random() < 0.5
            try:
                body = chat(
                    "pair", f"{self.random.randrange(60)} words", stream=stream, n=self.random.choice([1, 1, 3])
                )
                await self.gateway.client.post(CHAT, json=body)
            except httpx.RemoteProtocolError:
                assert stream, "only a stream is cut"

    async def leave(self) -> None:
        self.left += 1
        async with raw_client(self.gateway.url) as client:
            await client.post(CHAT, chat("pair", "200 words", stream=self.random.random() < 0.7))
            await pace(self.random.random() * 0.1)  # anywhere in its life
            self.random.choice(LEAVE)(client)


async def test_after_a_thousand_requests_of_every_kind_everything_is_given_back() -> None:
    gc.collect()  # what other tests left behind
    tasks, files = asyncio.all_tasks(), open_files()
    async with AsyncExitStack() as stack:
        sims = [SimVllm(name, decode=2000) for name in ("one", "two")]
        urls = [await stack.enter_async_context(sim.serve()) for sim in sims]
        routes = (
            "defaults: {health: {every: 5s, fail_after: 100000}}\n"
            f"backends: {{one: {{url: '{urls[0]}'}}, two: {{url: '{urls[1]}', slots: 2}}}}\n"
            "aliases: {pair: {use: [[one, two]], balance: least_busy}}"
        )
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("one", "two")
        crowd = Crowd(gateway, sims)
        await crowd.run()
        await gateway.until(gateway.idle)
        for sim in sims:
            sim.clear()
            await sim.wait_inflight(0)
        states = gateway.gateway.fleet.states.values()
        assert [(s.inflight, s.prompt_tokens, s.health.trial) for s in states] == [(0, 0, False)] * 2
        # A reset may overtake a request that was not read yet: then there was none.
        assert REQUESTS - crowd.left <= counted(gateway) <= REQUESTS
        assert sum(sim.aborted for sim in sims) > 10, "too tame to show anything"
        assert gateway.metric("gateway_queue_seconds_sum") > 1.0, "too few had to wait"
        assert not gateway.gateway.admission.scheduler.waiters
        assert (await gateway.client.post(CHAT, json=chat("pair"))).status_code == 200
    await turns(5)  # what was closed is taken off in the loop's next rounds
    gc.collect()
    assert asyncio.all_tasks() == tasks
    assert open_files() <= files


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def counted(gateway: RunningGateway) -> float:
    """Requests that were settled, each counted once."""
    families = gateway.gateway.metrics.registry.collect()
    return sum(s.value for family in families for s in family.samples if s.name == "gateway_requests_total")


async def test_a_full_step_is_never_spilled_to_the_next() -> None:
    first, second = SimVllm("first", slots=8), SimVllm("second")
    async with first.serve() as one, second.serve() as two:
        routes = (
            f"backends: {{first: {{url: '{one}', slots: 1}}, second: {{url: '{two}', slots: 8}}}}\n"
            "aliases: {chain: [first, second]}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("first", "second")
            first.fault("slow", delay=0.05)
            answers = await asyncio.gather(*(gateway.client.post(CHAT, json=chat("chain")) for _ in range(6)))
            assert {(a.status_code, a.headers["x-gateway-backend"]) for a in answers} == {(200, "first")}
            assert second.requests == []


def test_a_request_is_counted_by_its_sequences_and_at_most_as_the_whole_backend() -> None:
    state = backend("a", slots=4)
    admission = Admission(Metrics())
    three = admission.try_acquire(Candidate(state, 0), request(n=3))
    assert three is not None
    assert state.inflight == 3
    assert admission.try_acquire(Candidate(state, 0), request(n=100)) is None
    three.release()
    three.release()
    assert (state.inflight, state.prompt_tokens) == (0, 0), "released twice is released once"
    many = admission.try_acquire(Candidate(state, 0), request(n=100))
    assert many is not None
    assert state.inflight == 4
    many.release()
    assert (state.inflight, state.prompt_tokens) == (0, 0)
