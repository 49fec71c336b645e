"""Requests that wait while other backends are free, come or go: later steps, and how long one waits for a return."""

from __future__ import annotations

import asyncio

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.queueing import CHAT, queue
from tests.raw_client import chat
from tests.scripted import answer as http_answer
from tests.support import running_gateway

# -- later steps ------------------------------------------------------------------------------------------------------


async def test_on_busy_next_spills_to_the_next_local_step_that_has_room() -> None:
    async with queue("a: 1, b: 1", "pool: {use: [a, b], on_busy: next}") as q:
        await q.ask("r0", "r1", "r2")
        assert (q.gates["a"].order, q.gates["b"].order, q.depth("a"), q.depth("b")) == (["r0"], ["r1"], 1.0, 1.0)
        q.gates["b"].end("r1")
        await q.until_inside("r2", "b")
        q.gates["b"].end("r2")
        for name in ("r1", "r2"):
            headers = (await q.reply(name)).headers
            assert (headers["x-gateway-backend"], headers["x-gateway-routed"]) == ("b", "busy")


async def test_a_busy_step_is_waited_for_by_default_whatever_room_the_next_has() -> None:
    async with queue("a: 1, b: 1, cloud: 0", "pool: {use: [a, b, cloud], cloud_when: [down, busy]}") as q:
        await q.ask("r0", "r1")
        assert (q.depth("a"), q.gates["b"].order, q.gates["cloud"].order) == (1.0, [], []), "b is not busy"


async def test_a_cloud_is_entered_when_everything_local_is_busy_and_the_alias_says_so() -> None:
    async with queue("a: 1, cloud: 0", "pool: {use: [a, cloud], cloud_when: [busy]}") as q:
        await q.ask("r0", "r1", "r2")
        assert (q.gates["a"].order, q.gates["cloud"].order) == (["r0"], ["r1", "r2"]), "clouds have no slots"
        q.gates["cloud"].end("r1")
        headers = (await q.reply("r1")).headers
        assert (headers["x-gateway-backend"], headers["x-gateway-routed"]) == ("cloud", "busy")


async def test_a_cloud_is_not_entered_for_want_of_a_slot_otherwise() -> None:
    async with queue("a: 1, cloud: 0", "pool: [a, cloud]") as q:
        await q.ask("r0", "r1")
        assert (q.depth("a"), q.gates["cloud"].order) == (1.0, [])


# -- backends that go and come ----------------------------------------------------------------------------------------


async def test_when_a_backend_goes_those_who_wait_for_it_move_on_and_keep_their_order() -> None:
    async with queue("a: 1, b: 1", "pool: [a, b]") as q:
        await q.ask("r0", "r1", "r2", "r3")
        assert q.depth("a") == 3.0
        q.gateway.gateway.fleet["a"].evidence.misconfigured("its key was taken away")
        await q.until_inside("r1", "b")
        assert (q.depth("a"), q.depth("b")) == (0.0, 2.0)
        for name in ("r1", "r2", "r3"):
            await q.until_inside(name, "b")
            q.gates["b"].end(name)
            assert (await q.reply(name)).headers["x-gateway-fallback"] == "misconfigured"


async def test_a_request_that_waits_for_a_fallback_goes_back_to_the_first_step_when_it_returns() -> None:
    async with queue("a: 1, b: 1", "pool: [a, b]") as q:
        state = q.gateway.gateway.fleet["a"]
        state.health.state = State.MISCONFIGURED
        await q.ask("r0", "r1")
        assert (q.gates["b"].order, q.depth("b")) == (["r0"], 1.0)
        state.health.state = State.READY
        await q.until_inside("r1", "a")
        q.gates["a"].end("r1")
        headers = (await q.reply("r1")).headers
        assert (headers["x-gateway-backend"], headers.get("x-gateway-fallback")) == ("a", None)


async def test_a_killed_backend_loses_nobody_who_waits_for_it() -> None:
    a, b = SimVllm("a", slots=2, decode=20), SimVllm("b", slots=2)
    async with a.serve() as one, b.serve() as two:
        health = "health: {every: 50ms, fail_after: 1}"
        routes = (
            f"backends: {{a: {{url: '{one}', slots: 2, {health}}}, b: {{url: '{two}', slots: 2}}}}\n"
            "aliases: {pool: [a, b]}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            body = chat("pool", "20 words")
            asked = [asyncio.create_task(gateway.client.post(CHAT, json=body)) for _ in range(8)]
            await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="a") == 6.0)
            await a.kill()
            answers = await asyncio.gather(*asked)
            assert [(r.status_code, r.headers["x-gateway-backend"]) for r in answers] == [(200, "b")] * 8
            assert b.engine.slots == 2


async def test_a_backend_that_is_starting_is_waited_for() -> None:
    sim = SimVllm("a")
    await sim.start(running=False)
    try:
        routes = f"backends: {{a: {{url: '{sim.url}', health: {{every: 50ms, fail_after: 1}}}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until(lambda: gateway.state("a") in (State.WARMING, State.DOWN))
            asked = asyncio.create_task(gateway.client.post(CHAT, json=chat("a")))
            await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="a") == 1.0)
            await sim.revive()
            answer = await asked
            assert (answer.status_code, int(answer.headers["x-gateway-queue-ms"]) > 0) == (200, True)
    finally:
        await sim.stop()


async def test_a_backend_that_has_just_gone_is_not_waited_for() -> None:
    sim = SimVllm("a")
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', health: {{every: 50ms, fail_after: 1}}}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            await sim.kill()
            first = await gateway.client.post(CHAT, json=chat("a"))  # finds nobody there
            await gateway.until(lambda: gateway.state("a") is State.DOWN)
            second = await gateway.client.post(CHAT, json=chat("a"))
            for answer in (first, second):
                assert (answer.status_code, answer.json()["error"]["code"]) == (429, "backend_warming")
                assert int(answer.headers["retry-after"]) >= 1
            assert gateway.metric("gateway_queue_seconds_sum") < 1.0


async def test_while_one_request_is_on_trial_the_others_wait_for_how_it_ends() -> None:
    async with queue("a: 4", more=", health: {every: 60s}") as q:
        health = q.gateway.gateway.fleet["a"].health
        health.state, health.half_open, health.from_requests = State.SUSPECT, True, True
        await q.ask("trial", "r1", "r2")
        assert (q.gate.order, q.depth()) == (["trial"], 2.0)
        q.gate.end("trial")
        await q.until_inside("r1")
        await q.until_inside("r2")
        assert q.gateway.state("a") is State.READY


async def test_a_backend_that_is_expected_too_late_is_not_waited_for() -> None:
    routes = "backends: {a: {url: 'http://127.0.0.1:9', queue: {max_wait: 2s}, health: {every: 50ms, fail_after: 1}}}"
    async with running_gateway(routes) as gateway:
        await gateway.until(lambda: gateway.state("a") in (State.WARMING, State.DOWN))
        gateway.gateway.fleet["a"].health.since -= 100.0  # away for long: it may take as long again
        answer = await gateway.client.post(CHAT, json=chat("a"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "backend_warming")
        assert gateway.metric("gateway_queue_seconds_count") == 0


async def test_a_pause_that_ends_in_time_is_waited_for() -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        sim.fault("status", status=429, headers={"retry-after": "1"}, count=1)
        answer = await gateway.client.post(CHAT, json=chat("a"))
        assert (answer.status_code, answer.headers["x-gateway-attempts"]) == (200, "2")
        assert int(answer.headers["x-gateway-queue-ms"]) >= 900


async def test_a_request_that_failed_is_first_in_the_line_of_the_next_backend() -> None:
    async with queue("a: 1, b: 1", "pool: [a, b]\n  direct: [b]") as q:
        await q.ask("r0")
        await q.ask("d0", "d1", model="direct")
        q.gates["a"].end("r0", with_=http_answer(b"{}", "500 Internal Server Error"))
        await q.gateway.until(lambda: q.depth("b") == 2.0)
        q.gates["b"].end("d0")
        await q.until_inside("r0", "b")
        q.gates["b"].end("r0")
        headers = (await q.reply("r0")).headers
        assert (headers["x-gateway-backend"], headers["x-gateway-attempts"]) == ("b", "2")
