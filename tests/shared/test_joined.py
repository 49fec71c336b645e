"""Gateways in one process, each with its own connections, in front of the same backends and the same Redis."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admission.accounts import today
from gateway.health import prober, progress
from gateway.health.state import State
from gateway.shared import gateways as gateways_module
from gateway.shared.gateways import Gateways
from gateway.shared.library import Operation
from gateway.shared.link import Link
from gateway.sim import SimVllm
from tests.raw_client import chat, raw_client
from tests.scripted import raw_post
from tests.shared.redis_server import RedisServer
from tests.support import RunningGateway, running_gateway
from tests.test_queue import Gate

CHAT = "/v1/chat/completions"
FAST = "defaults: {health: {every: 100ms, fail_after: 3, recover_after: 2}}\n"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]


class Counting(SimVllm):
    """`most`: how many requests it had at a time."""

    most = 0

    def changed(self) -> None:
        self.most = max(self.most, self.inflight)
        super().changed()


def shared(gateway: RunningGateway) -> Gateways:
    found = gateway.gateway.shared
    assert found is not None
    return found


async def until_joined(gateway: RunningGateway, joined: bool) -> None:
    await gateway.until(lambda: shared(gateway).joined is joined)


@asynccontextmanager
async def one_more(redis: RedisServer, routes: str, count: int, wait: str = "2") -> AsyncIterator[RunningGateway]:
    """A gateway that has joined, as one of so many. `wait`: seconds that it is patient with Redis; this machine may be
    slow."""
    async with running_gateway(f"server: {{shared: '{redis.url}?socket_timeout={wait}'}}\n{routes}") as gateway:
        await gateway.until(lambda: shared(gateway).joined and shared(gateway).gateways == count)
        yield gateway


@asynccontextmanager
async def gateways(
    redis: RedisServer, routes: str, count: int = 2, wait: str = "2"
) -> AsyncIterator[list[RunningGateway]]:
    """`routes` without `server`."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(one_more(redis, routes, n + 1, wait)) for n in range(count)]
        for gateway in found:
            await gateway.until(lambda g=gateway: shared(g).gateways == count)  # type: ignore[misc]  # binds the name
            await gateway.until_ready(*(n for n, b in gateway.gateway.snapshot.backends.items() if not b.cloud))
        yield found


def slots_of(url: str, slots: int) -> str:
    return f"backends: {{a: {{url: '{url}', slots: {slots}}}}}"


async def ask(gateway: RunningGateway, model: str = "a", said: str = "hi", **body: Any) -> httpx.Response:
    return await gateway.client.post(CHAT, json=chat(model, said, **body))


# -- the cost ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[list[Operation]]:
    """Every batch that goes to Redis, but for renewals: those are put off."""
    found: list[list[Operation]] = []
    trip = Link._trip

    async def noted(self: Link, operations: list[Operation]) -> list[Any]:
        found.append(operations)
        return await trip(self, operations)

    monkeypatch.setattr(Link, "_trip", noted)
    return found


def kinds(batches: list[list[Operation]]) -> list[list[str]]:
    return [[operation[0] for operation in batch] for batch in batches]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_need_not_wait_waits_for_one_trip(
    redis: RedisServer, trips: list[list[Operation]], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """With all that is counted of it: limits, max_inflight and the slot. Its end waits for none, a chunk asks none."""
    monkeypatch.setattr(gateways_module, "RENEW", 60.0)
    clients = "clients: {c: {key: k, rpm: 100, tpm: 100000, max_inflight: 5}}"
    async with SimVllm("a").serve() as url, one_more(redis, f"backends: {{a: {{url: '{url}'}}}}\n{clients}", 1) as one:
        await one.until_ready("a")
        await one.until(lambda: kinds(trips)[-1][:1] == ["renew"])
        trips.clear()
        headers = {"authorization": "Bearer k"}
        answer = await one.client.post(CHAT, json=chat("a", "200 words", stream=stream), headers=headers)
        assert answer.status_code == 200
        await one.until(lambda: len(trips) == 2)
        assert kinds(trips) == [["take"], ["used", "drop"]]


async def test_the_end_of_a_request_does_not_wait_for_redis(redis: RedisServer) -> None:
    gate = Gate()
    gate.backend.scripts = (gate.hold,)
    async with gate.backend.serve(), one_more(redis, f"backends: {{a: {{url: '{gate.backend.url}'}}}}", 1) as one:
        await one.until_ready("a")
        asking = asyncio.create_task(raw_post(one.url, chat("a", "r")))
        await one.until(lambda: "r" in gate.inside)
        redis.freeze()
        try:
            gate.end("r")
            async with asyncio.timeout(1.5):  # the patience with Redis is 2 s
                assert (await asking).status == 200
            await one.until(one.idle)
        finally:
            redis.thaw()


async def test_a_cloud_without_limits_asks_nobody(
    redis: RedisServer, trips: list[list[Operation]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways_module, "RENEW", 60.0)
    async with SimVllm("c", generic=True).serve() as url:
        routes = f"backends: {{c: {{engine: openai, url: '{url}', cloud: true, model: model}}}}\naliases: {{x: [c]}}"
        async with one_more(redis, routes, 1) as one:
            await one.until(lambda: len(trips) >= 2)
            trips.clear()
            assert (await ask(one, "x")).status_code == 200
            await one.until(one.idle)
            assert trips == []


def test_without_shared_redis_is_not_even_imported() -> None:
    code = (
        "import sys\nfrom gateway.app import App\nfrom gateway.config.load import load_text\n"
        "App(load_text('backends: {a: {url: \"http://127.0.0.1:1\"}}', 'routes.yaml', {}).snapshot)\n"
        "print([name for name in sys.modules if name.startswith(('redis', 'gateway.shared'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# -- slots and limits -------------------------------------------------------------------------------------------------


async def test_three_gateways_never_exceed_a_backends_slots_and_use_them_all(redis: RedisServer) -> None:
    sim = Counting("a", decode=300, slots=16)
    async with sim.serve() as url, gateways(redis, f"backends: {{a: {{url: '{url}', slots: 4}}}}", 3) as found:
        answers = await asyncio.gather(*(ask(found[n % 3], said="20 words") for n in range(45)))
        assert [answer.status_code for answer in answers] == [200] * 45
        assert sim.most == 4
        assert all(gateway.metric("gateway_slots_excess", backend="a") == 0 for gateway in found)


async def test_what_other_gateways_run_there_is_not_taken_for_strangers(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prober, "MOVING", 0.05)
    sim = SimVllm("a")
    async with sim.serve() as url, gateways(redis, f"{FAST}backends: {{a: {{url: '{url}', slots: 4}}}}") as (one, two):
        sim.fault("hang_mid", after=2)
        asking = [asyncio.create_task(ask(one, said="9 words", stream=True)) for _ in range(3)]
        await sim.wait_inflight(3)
        state = two.gateway.fleet["a"]
        await two.until(lambda: state.elsewhere == 3)
        looks: list[int] = []
        for _ in range(5):
            await two.gateway.prober.look_at_engine(state)
            looks.append(state.foreign)
        assert looks[1:] == [0, 0, 0, 0]
        assert two.metric("gateway_elsewhere", backend="a") == 3
        sim.clear()
        await asyncio.gather(*asking)


async def test_turns_are_kept_between_clients_of_different_gateways(redis: RedisServer) -> None:
    gate = Gate()
    gate.backend.scripts = (gate.hold,)
    keys = "clients: {hog: {key: hog}, other: {key: other}}"
    async with gate.backend.serve():
        routes = f"backends: {{a: {{url: '{gate.backend.url}', slots: 1, queue: {{length: 200}}}}}}\n{keys}"
        async with gateways(redis, routes) as (one, two):
            hog = [
                asyncio.create_task(raw_post(one.url, chat("a", f"hog-{n}"), headers=["authorization: Bearer hog"]))
                for n in range(100)
            ]
            await one.until(lambda: len(gate.inside) + len(one.gateway.admission.scheduler.waiters) == 100)
            other = asyncio.create_task(raw_post(two.url, chat("a", "single"), headers=["authorization: Bearer other"]))
            await two.until(lambda: len(two.gateway.admission.scheduler.waiters) == 1)
            while not other.done():
                gate.end(*(name for name, said in gate.inside.items() if not said.done()))
                await asyncio.sleep(0.005)
            assert gate.order.index("single") <= 2
            assert gate.most == 1
            while not all(task.done() for task in hog):
                gate.end(*(name for name, said in gate.inside.items() if not said.done()))
                await asyncio.sleep(0.005)
            assert {task.result().status for task in hog} == {200}


async def test_max_inflight_and_rpm_of_a_client_count_at_all_gateways(redis: RedisServer) -> None:
    sim = Counting("a", decode=200)
    keys = "clients: {narrow: {key: narrow, max_inflight: 2}, slow: {key: slow, rpm: 5}}"
    async with sim.serve() as url, gateways(redis, f"backends: {{a: {{url: '{url}'}}}}\n{keys}", 3) as found:
        narrow = {"authorization": "Bearer narrow"}
        asked = [found[n % 3].client.post(CHAT, json=chat("a", "9 words"), headers=narrow) for n in range(9)]
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        assert sim.most == 2
        slow = {"authorization": "Bearer slow"}
        asked = [found[n % 3].client.post(CHAT, json=chat("a"), headers=slow) for n in range(12)]
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [200] * 5 + [429] * 7
        windows = [gateway.gateway.accounts.limits._clients["slow"].requests for gateway in found]
        assert sum(window.used(time.monotonic()) for window in windows) == 5, "what was refused counts nowhere"
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused.headers["retry-after"]) <= 61


async def test_a_step_that_is_full_of_others_requests_is_spilled_where_the_alias_says_so(redis: RedisServer) -> None:
    """The gateway learns of it by the answer, and asks the cloud then."""
    sim, cloud = SimVllm("a"), SimVllm("c", generic=True)
    async with sim.serve() as one_url, cloud.serve() as two_url:
        routes = (
            f"backends: {{a: {{url: '{one_url}', slots: 1}}, "
            f"c: {{engine: openai, url: '{two_url}', cloud: true, model: model}}}}\n"
            "aliases: {x: {use: [a, c], cloud_when: [down, busy]}}"
        )
        async with gateways(redis, routes) as (one, two):
            sim.fault("hang_mid", after=1, count=1)
            holding = asyncio.create_task(ask(one, "x", "9 words", stream=True))
            await sim.wait_inflight(1)
            two.gateway.fleet["a"].elsewhere = 0
            answer = await ask(two, "x")
            assert answer.headers["x-gateway-backend"] == "c"
            assert answer.headers["x-gateway-routed"] == "busy"
            sim.clear()
            await holding


async def test_least_busy_sees_what_others_have_there_and_sessions_meet_at_one_backend(redis: RedisServer) -> None:
    a, b = SimVllm("a"), SimVllm("b")
    async with a.serve() as one_url, b.serve() as two_url:
        routes = (
            f"backends: {{a: {{url: '{one_url}'}}, b: {{url: '{two_url}'}}}}\n"
            "aliases: {least: {use: [[a, b]], balance: least_busy}, same: {use: [[a, b]]}, a1: [a]}"
        )
        async with gateways(redis, routes, 3) as found:
            for number in range(12):
                session = {"x-claude-code-session-id": f"s{number}"}
                asked = [await g.client.post(CHAT, json=chat("same"), headers=session) for g in found]
                assert len({answer.headers["x-gateway-backend"] for answer in asked}) == 1
            a.fault("hang_mid", after=1, count=3)
            holding = [asyncio.create_task(ask(found[0], "a1", "9 words", stream=True)) for _ in range(3)]
            await a.wait_inflight(3)
            await found[1].until(lambda: found[1].gateway.fleet["a"].elsewhere == 3)
            assert {(await ask(found[1], "least")).headers["x-gateway-backend"] for _ in range(4)} == {"b"}
            a.clear()
            await asyncio.gather(*holding)


# -- what is known ----------------------------------------------------------------------------------------------------


async def test_a_drain_at_one_is_a_drain_at_all_until_it_is_resumed(redis: RedisServer) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, AsyncExitStack() as stack:
        routes = f"{FAST}backends: {{a: {{url: '{url}'}}}}"
        one, two = await stack.enter_async_context(gateways(redis, routes))
        assert (await one.client.post("/admin/backends/a/drain")).status_code == 200
        await two.until(lambda: two.state("a") is State.DRAINING)
        new = await stack.enter_async_context(one_more(redis, routes, 3))
        assert new.state("a") is State.DRAINING, "before its first request"
        assert (await ask(new)).status_code == 503
        assert (await two.client.post("/admin/backends/a/resume")).status_code == 200
        for gateway in (one, new):
            await gateway.until_ready("a")


async def test_a_hung_engine_that_one_has_found_is_left_by_all(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SILENCE_LEAST", 0.5)
    monkeypatch.setattr(prober, "MOVING", 0.05)
    a, b = SimVllm("a"), SimVllm("b")
    async with a.serve() as one_url, b.serve() as two_url:
        backends = f"backends: {{a: {{url: '{one_url}'}}, b: {{url: '{two_url}'}}}}"
        async with gateways(redis, f"{FAST}{backends}\naliases: {{chain: [a, b]}}") as (one, two):

            async def blind(*_: Any) -> None:
                """It cannot see for itself."""

            monkeypatch.setattr(two.gateway.prober, "look_at_engine", blind)
            async with raw_client(two.url) as client:
                a.fault("hang_mid", after=2, count=1)
                await client.post(CHAT, chat("chain", "9 words", stream=True))
                await client.until(b'"content":"')
                a.fault("hang_engine")
                answer = await ask(one, "chain")
                assert answer.headers["x-gateway-backend"] == "b"
                await client.rest()
                assert b'"code":"stream_interrupted"' in client.seen
            health = two.gateway.fleet["a"].health
            assert health.state is State.DOWN
            assert "stood still" in health.reason
            assert "found by another gateway" in health.reason
            assert (await ask(two, "chain")).headers["x-gateway-backend"] == "b"


async def test_a_refusal_teaches_all_gateways_and_those_that_come_later(redis: RedisServer) -> None:
    a, b = SimVllm("a", tool_parser=None), SimVllm("b")
    async with a.serve() as one_url, b.serve() as two_url, AsyncExitStack() as stack:
        backends = f"backends: {{a: {{url: '{one_url}'}}, b: {{url: '{two_url}'}}}}"
        routes = f"{backends}\naliases: {{chain: [a, b]}}"
        one, two = await stack.enter_async_context(gateways(redis, routes))
        assert (await ask(one, "chain", tools=TOOLS)).headers["x-gateway-attempts"] == "2"
        await two.until(lambda: bool(two.gateway.fleet["a"].learned))
        new = await stack.enter_async_context(one_more(redis, routes, 3))
        await new.until(lambda: bool(new.gateway.fleet["a"].learned))
        for gateway in (two, new):
            assert (await ask(gateway, "chain", tools=TOOLS)).headers["x-gateway-attempts"] == "1"
        assert len(a.requests) == 1
        one.gateway.fleet["a"].start_over()  # as a probe does
        for gateway in (two, new):
            await gateway.until(lambda g=gateway: not g.gateway.fleet["a"].learned)  # type: ignore[misc]  # binds the name


async def test_what_was_learned_of_another_engine_is_not_believed(redis: RedisServer) -> None:
    async with SimVllm("a").serve() as url, gateways(redis, f"backends: {{a: {{url: '{url}'}}}}") as (one, two):
        theirs, ours = one.gateway.fleet["a"], two.gateway.fleet["a"]
        theirs.version = "another"
        theirs.learn_lack("tools", asyncio.get_running_loop().time())
        theirs.version = ours.version
        theirs.learn_lack("images", asyncio.get_running_loop().time())
        await two.until(lambda: bool(ours.learned))
        assert set(ours.learned) == {"images"}


async def test_one_canary_serves_all_gateways(redis: RedisServer) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, AsyncExitStack() as stack:
        routes = f"defaults: {{health: {{every: 100ms, canary: 10m}}}}\nbackends: {{a: {{url: '{url}'}}}}"
        one = await stack.enter_async_context(one_more(redis, routes, 1))
        await one.until(lambda: "tool_auto" in one.gateway.fleet["a"].observed)
        asked = len(sim.requests)
        two = await stack.enter_async_context(one_more(redis, routes, 2))
        await two.until(lambda: "tool_auto" in two.gateway.fleet["a"].observed)
        checked = sim.seen["/health"]
        await two.until(lambda: sim.seen["/health"] > checked + 8)  # it has been looked at a few times
        assert len(sim.requests) == asked


# -- money ------------------------------------------------------------------------------------------------------------


async def test_a_budget_is_spent_by_all_together_and_remembered(redis: RedisServer) -> None:
    async with SimVllm("c", generic=True).serve() as url, AsyncExitStack() as stack:
        price = "price: {input: 1000000, output: 0}, budget: 1000000 USD/day"
        backend = f"c: {{engine: openai, url: '{url}', cloud: true, model: model, {price}}}"
        routes = f"backends: {{{backend}}}\naliases: {{x: [c]}}"
        one, two = await stack.enter_async_context(gateways(redis, routes))
        budgets = [gateway.gateway.accounts.budgets for gateway in (one, two)]
        budgets[0].add("c", "open", 600_000.0, today())
        budgets[1].add("c", "open", 300_000.0, today())
        cloud = two.gateway.snapshot.backends["c"]
        accounts = two.gateway.accounts
        assert accounts.why_broke(cloud, None) is None
        budgets[0].add("c", "open", 100_000.0, today())
        await two.until(lambda: accounts.why_broke(cloud, None) is not None)
        assert (await ask(two, "x")).status_code == 402
        await one.until(lambda: one.gateway.accounts.why_broke(cloud, None) is not None)
        new = await stack.enter_async_context(one_more(redis, routes, 3))
        assert new.gateway.accounts.why_broke(cloud, None) is not None


async def test_what_is_under_way_at_one_counts_at_the_others_until_it_ends(redis: RedisServer) -> None:
    gate = Gate()
    gate.backend.scripts = (gate.hold,)
    async with gate.backend.serve():
        price = "price: {input: 0, output: 1000}, budget: 1 USD/day"  # 0.1 USD for 100 tokens
        url = gate.backend.url
        routes = (
            f"backends: {{c: {{engine: openai, url: '{url}', cloud: true, model: m, {price}}}}}\naliases: {{x: [c]}}"
        )
        async with gateways(redis, routes) as (one, two):
            asking = [asyncio.create_task(raw_post(one.url, chat("x", f"r{n}", max_tokens=100))) for n in range(10)]
            await one.until(lambda: len(gate.inside) == 10)
            backend = two.gateway.snapshot.backends["c"]
            await two.until(lambda: two.gateway.accounts.why_broke(backend, None) is not None)
            assert (await ask(two, "x", max_tokens=100)).status_code == 402
            gate.end(*gate.inside)
            await asyncio.gather(*asking)
            await two.until(lambda: two.gateway.accounts.why_broke(backend, None) is None)


# -- without Redis ----------------------------------------------------------------------------------------------------


async def crowd(found: list[RunningGateway], until: Callable[[], bool], at_a_time: int) -> list[int]:
    """So many clients at each gateway that ask again and again; the statuses of all answers."""
    statuses: list[int] = []

    async def client(gateway: RunningGateway) -> None:
        while not until():
            statuses.append((await ask(gateway, said="5 words", stream=len(statuses) % 2 == 0)).status_code)

    await asyncio.gather(*(client(gateway) for gateway in found for _ in range(at_a_time)))
    return statuses


async def test_when_redis_dies_and_comes_back_no_request_fails_and_the_excess_is_small(own_redis: RedisServer) -> None:
    sim = Counting("a", decode=500, slots=32)
    async with sim.serve() as url, gateways(own_redis, f"backends: {{a: {{url: '{url}', slots: 6}}}}", 3) as found:
        over = False
        load = asyncio.create_task(crowd(found, lambda: over, 6))
        for _ in range(2):
            before = len(sim.requests)
            await found[0].until(lambda: len(sim.requests) > before + 60)  # noqa: B023  # of this round
            assert all(shared(gateway).joined for gateway in found)
            assert sim.most <= 6
            own_redis.kill()
            for gateway in found:
                await until_joined(gateway, False)
                assert gateway.gateway.fleet["a"].sharers == 3
                assert gateway.metric("gateway_shared_joined") == 0
            before = len(sim.requests)
            await found[0].until(lambda: len(sim.requests) > before + 60)  # noqa: B023
            assert sim.most <= 6 + 2 * 2, "at most a share of each of the others beside what runs"
            own_redis.start()
            for gateway in found:
                await until_joined(gateway, True)
            await found[0].until(lambda: all(shared(g).gateways == 3 for g in found))
            sim.most = 0
        over = True
        assert set(await load) == {200}
        status = (await found[0].client.get("/status")).json()
        assert status["shared"]["away"] == 2
        assert any(event["kind"] == "shared" and "is away" in event["reason"] for event in status["events"])


async def test_a_frozen_redis_is_away_after_a_bounded_wait(own_redis: RedisServer) -> None:
    sim = SimVllm("a")
    async with (
        sim.serve() as url,
        gateways(own_redis, f"backends: {{a: {{url: '{url}', slots: 2}}}}", 2, "0.25") as found,
    ):
        own_redis.freeze()
        began = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(ask(gateway) for gateway in found for _ in range(3)))
        took = asyncio.get_running_loop().time() - began
        assert [answer.status_code for answer in answers] == [200] * 6
        assert took < 5.0, "a bounded wait, once"
        assert not any(shared(gateway).joined for gateway in found)
        assert "no answer within 250 ms" in shared(found[0]).reason
        own_redis.thaw()
        for gateway in found:
            await until_joined(gateway, True)
        assert [(await ask(gateway)).status_code for gateway in found] == [200, 200]


async def test_a_gateway_that_starts_without_redis_serves_with_the_share_it_remembers(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    own_redis.kill()
    (tmp_path / "shared.json").write_text('{"owner": "someone", "gateways": 3}')
    sim = Counting("a", decode=500, slots=32)
    async with sim.serve() as url:
        server = f"server: {{shared: '{own_redis.url}', data: '{tmp_path}'}}\n"
        async with running_gateway(f"{server}backends: {{a: {{url: '{url}', slots: 6}}}}") as one:
            answers = await asyncio.gather(*(ask(one, said="9 words") for _ in range(8)))
            assert {answer.status_code for answer in answers} == {200}
            assert sim.most == 2
            own_redis.start()
            await one.until(lambda: shared(one).joined)


async def test_what_was_learned_while_redis_was_away_is_told_when_it_is_back(own_redis: RedisServer) -> None:
    async with SimVllm("a").serve() as url, gateways(own_redis, FAST + slots_of(url, 2)) as (one, two):
        own_redis.kill()
        for gateway in (one, two):
            await until_joined(gateway, False)
        one.gateway.fleet["a"].drain()
        own_redis.start()
        await two.until(lambda: two.state("a") is State.DRAINING)
