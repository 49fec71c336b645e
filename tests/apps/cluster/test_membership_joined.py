"""Gateways that have joined: slots, limits and money are counted together."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from gateway.accounting.accounts import today
from gateway.health import engine_look
from simulator import SimVllm
from tests.apps.cluster.joined import CHAT, FAST, Counting, ask, gateways, one_more
from tests.apps.cluster.redis_server import RedisServer
from tests.queueing import Gate
from tests.raw_client import chat
from tests.scripted import Turn, json_answer, raw_post, scripted

# -- slots and limits -------------------------------------------------------------------------------------------------


async def test_three_gateways_never_exceed_a_backends_slots_and_use_them_all(redis: RedisServer) -> None:
    sim = Counting("a", decode=300, slots=16)
    async with sim.serve() as url, gateways(redis, f"backends: {{a: {{url: '{url}', slots: 4}}}}", 3) as found:
        answers = await asyncio.gather(*(ask(found[n % 3], said="20 words") for n in range(45)))
        assert [answer.status_code for answer in answers] == [200] * 45
        assert sim.most == 4
        assert all(gateway.metric("gateway_slots_excess", backend="a") == 0 for gateway in found)


async def test_one_id_at_two_gateways_is_two_for_the_backend(redis: RedisServer) -> None:
    got, both = list[str](), asyncio.Event()

    async def until_both(turn: Turn) -> None:
        got.append(turn.headers["x-request-id"])
        if len(got) == 2:
            both.set()
        await both.wait()
        choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        await turn.send(json_answer({"id": "x", "model": "a", "choices": [choice]}))

    async with scripted(until_both, apart=True) as backend, AsyncExitStack() as stack:
        routes = f"backends: {{a: {{url: '{backend.url}', slots: 4}}}}"
        one, two = await stack.enter_async_context(gateways(redis, routes))
        asking = [raw_post(at.url, chat("a", "hi"), headers=["x-request-id: mine"]) for at in (one, two)]
        replies = await asyncio.gather(*asking)
    assert [(reply.status, reply.headers["x-request-id"]) for reply in replies] == [(200, "mine")] * 2
    assert len(set(got)) == 2


async def test_what_other_gateways_run_there_is_not_taken_for_strangers(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_look, "MOVING", 0.05)
    sim = SimVllm("a")
    async with sim.serve() as url, gateways(redis, f"{FAST}backends: {{a: {{url: '{url}', slots: 4}}}}") as (one, two):
        sim.fault("hang_mid", after=2)
        asking = [asyncio.create_task(ask(one, said="9 words", stream=True)) for _ in range(3)]
        await sim.wait_inflight(3)
        state = two.gateway.fleet["a"]
        await two.until(lambda: state.shared.elsewhere == 3)
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
            await two.until(lambda: [w.ticket > (0, 0) for w in two.gateway.admission.scheduler.waiters] == [True])
            gate.open()
            await other
            assert gate.order.index("single") <= 2
            assert gate.most == 1
            assert {reply.status for reply in await asyncio.gather(*hog)} == {200}


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
        windows = [gateway.gateway.accounts.limits._clients["slow"][0] for gateway in found]
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
            two.gateway.fleet["a"].shared.elsewhere = 0
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
            await found[1].until(lambda: found[1].gateway.fleet["a"].shared.elsewhere == 3)
            assert {(await ask(found[1], "least")).headers["x-gateway-backend"] for _ in range(4)} == {"b"}
            a.clear()
            await asyncio.gather(*holding)


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
        assert accounts.why_over_budget(cloud, None) is None
        budgets[0].add("c", "open", 100_000.0, today())
        await two.until(lambda: accounts.why_over_budget(cloud, None) is not None)
        assert (await ask(two, "x")).status_code == 402
        await one.until(lambda: one.gateway.accounts.why_over_budget(cloud, None) is not None)
        new = await stack.enter_async_context(one_more(redis, routes, 3))
        assert new.gateway.accounts.why_over_budget(cloud, None) is not None


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
            await two.until(lambda: two.gateway.accounts.why_over_budget(backend, None) is not None)
            assert (await ask(two, "x", max_tokens=100)).status_code == 402
            gate.end(*gate.inside)
            await asyncio.gather(*asking)
            await two.until(lambda: two.gateway.accounts.why_over_budget(backend, None) is None)
