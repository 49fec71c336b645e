"""Backends that requests start, with real processes as commands."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from gateway.domain.health_state import State, Transition
from tests.apps.alerts.hook import hooked
from tests.apps.control.machine import machine, steps
from tests.apps.control.requested import CALLED, CHAT, aged, ask, asking, called, on_node, until_known
from tests.raw_client import chat
from tests.support import RunningGateway


async def test_the_first_request_starts_it_and_is_answered(tmp_path: Path) -> None:
    async with machine(tmp_path, away="a") as there, called(there, a=CALLED) as gateway:
        assert gateway.state("a") is State.PARKED
        assert (await gateway.client.get("/ready")).status_code == 200
        answer = await ask(gateway, "a")
        assert answer.status_code == 200
        assert answer.headers["x-gateway-backend"] == "a"
        assert there.orders == ["start a"]
        operation = (await gateway.client.get("/admin/operations")).json()["operation"]
        assert (operation["kind"], operation["backend"], operation["cause"]) == ("start", "a", "request")
        assert steps(operation)[:2] == ["preflight a: skipped", "start a: done"]
        await gateway.until(lambda: gateway.metric("gateway_requested_starts_total", backend="a", result="done") == 1)
        states = [event.after for event in gateway.gateway.events if event.kind == "state" and event.backend == "a"]
        assert states == ["parked", "warming", "ready"]


async def test_twenty_requests_are_one_start(tmp_path: Path) -> None:
    async with machine(tmp_path, away="a") as there, called(there, a=CALLED) as gateway:
        there.faults["start a"] = "hang"
        asked = [asking(gateway, "a") for _ in range(20)]
        await there.until_asked("start a")
        await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="a") == 20)
        there.go_on()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        assert there.orders == ["start a"]


async def test_the_idle_one_is_stopped_for_it_and_none_that_is_young_or_has_work(tmp_path: Path) -> None:
    keys = {"a": CALLED + on_node(60), "b": CALLED + on_node(60), "c": on_node(20)}
    async with machine(tmp_path, "a", "c", away="b") as there, called(there, keys=keys) as gateway:
        await until_known(gateway, "a")
        refused = await ask(gateway, "b")
        assert refused.status_code == 503
        assert "a runs for less than its min_run" in refused.text
        aged(gateway, "a", idle=400, ran=400)
        there.sims["a"].fault("hang_before_content", count=1)
        stream = asking(gateway, "a")
        await there.sims["a"].wait_inflight(1)
        refused = await ask(gateway, "b")
        assert refused.status_code == 503
        assert "a has work" in refused.text
        there.sims["a"].clear()
        assert (await stream).status_code == 200
        assert there.orders == []
        assert (await ask(gateway, "b")).status_code == 200
        assert there.orders == ["stop a", "start b"]
        assert gateway.state("a") is State.PARKED
        await gateway.until(lambda: gateway.metric("gateway_requested_stops_total", backend="a", reason="evicted") == 1)
        assert "down" not in {event.after for event in gateway.gateway.events}


async def test_idle_for_stop_after_it_is_stopped_and_a_request_starts_it_again(tmp_path: Path) -> None:
    async with machine(tmp_path, "a") as there, called(there, a=CALLED + ", stop_after: 30m") as gateway:
        await until_known(gateway, "a")
        aged(gateway, "a", idle=1799)
        there.sims["a"].fault("hang_before_content", count=1)
        stream = asking(gateway, "a")
        await there.sims["a"].wait_inflight(1)
        aged(gateway, "a", idle=1800)
        gateway.gateway.apps.control.starter.look()
        assert not gateway.gateway.apps.control.starter.is_busy
        there.sims["a"].clear()
        assert (await stream).status_code == 200
        gateway.gateway.apps.control.starter.look()
        assert there.orders == []
        aged(gateway, "a", idle=1800)
        await gateway.until(lambda: gateway.state("a") is State.PARKED)
        operation = (await gateway.client.get("/admin/operations")).json()["operation"]
        assert (operation["kind"], operation["cause"]) == ("stop", "idle")
        assert (await ask(gateway, "a")).status_code == 200
        assert there.orders == ["stop a", "start a"]
        assert gateway.metric("gateway_requested_stops_total", backend="a", reason="idle") == 1


async def test_a_start_that_fails_is_not_tried_again_at_once(tmp_path: Path) -> None:
    async with machine(tmp_path, away="a") as there, called(there, a=CALLED) as gateway:
        there.faults["start a"] = "refuse"
        refused = await ask(gateway, "a")
        assert refused.status_code == 503
        assert "a is parked: its start failed (step `start`); it is started again in 30 s" in refused.text
        assert refused.headers["retry-after"] == "30"
        await gateway.until(lambda: there.orders == ["start a", "stop a"])
        await gateway.until(lambda: not gateway.gateway.apps.control.starter.is_busy)
        assert (await ask(gateway, "a")).status_code == 503
        assert there.orders == ["start a", "stop a"]
        assert gateway.metric("gateway_requested_starts_total", backend="a", result="failed") == 1
        failed = gateway.gateway.apps.control.starter.failed["a"]
        failed.until = 0.0
        assert "in 60 s" in (await ask(gateway, "a")).text
        await gateway.until(lambda: not gateway.gateway.apps.control.starter.is_busy)
        there.go_on()
        failed.until = 0.0
        assert (await ask(gateway, "a")).status_code == 200


async def test_a_request_goes_to_the_next_step_meanwhile(tmp_path: Path) -> None:
    more = "aliases: {x: [a, b]}\n"
    async with machine(tmp_path, "b", away="a") as there, called(there, more, a=CALLED) as gateway:
        there.faults["start a"] = "hang"
        answer = await ask(gateway, "x")
        assert (answer.headers["x-gateway-backend"], answer.headers["x-gateway-routed"]) == ("b", "busy")
        await there.until_asked("start a")
        assert gateway.state("a") is State.WARMING
        there.go_on()
        await gateway.until_ready("a")
        assert (await ask(gateway, "x")).headers["x-gateway-backend"] == "a"


async def test_or_waits_as_the_alias_says_and_goes_on_when_the_start_fails(tmp_path: Path) -> None:
    more = "aliases: {x: {use: [a, b], while_starting: wait}}\n"
    async with machine(tmp_path, "b", away="a") as there, called(there, more, a=CALLED) as gateway:
        there.faults["start a"] = "hang"
        waiting = asking(gateway, "x")
        await there.until_asked("start a")
        assert there.sims["b"].requests == []
        there.go_on()
        assert (await waiting).headers["x-gateway-backend"] == "a"
        await gateway.until(lambda: not gateway.gateway.apps.control.starter.is_busy)
        await there.sims["a"].kill()
        await gateway.until(lambda: gateway.state("a") is State.PARKED)
        gateway.gateway.apps.control.starter.failed.clear()
        there.faults["start a"] = "refuse"
        answer = await ask(gateway, "x")
        assert (answer.headers["x-gateway-backend"], answer.headers["x-gateway-fallback"]) == ("b", "parked")
        there.go_on()


async def test_a_later_step_is_not_started_for_nothing(tmp_path: Path) -> None:
    more = "aliases: {x: [b, a], pair: [[b, a]]}\n"
    async with machine(tmp_path, "b", away="a") as there, called(there, more, a=CALLED) as gateway:
        for alias in ("x", "pair"):
            assert (await ask(gateway, alias)).headers["x-gateway-backend"] == "b"
        assert there.orders == []
        there.sims["b"].fault("status", status=500, count=9)
        answer = await ask(gateway, "x")
        assert (answer.status_code, answer.headers["x-gateway-backend"]) == (200, "a")


async def test_a_client_without_may_start_starts_nothing(tmp_path: Path) -> None:
    more = "clients: {plain: {key: plain-key}, starter: {key: starter-key, may_start: true}}\n"
    async with machine(tmp_path, away="a") as there, called(there, more, a=CALLED) as gateway:
        refused = await ask(gateway, "a", "plain-key")
        assert refused.status_code == 503
        assert "client 'plain' may start no backend (clients.plain.may_start)" in refused.text
        assert there.orders == []
        assert (await ask(gateway, "a", "starter-key")).status_code == 200
        assert (await ask(gateway, "a", "plain-key")).status_code == 200


async def test_a_batch_request_starts_it_beside_the_others_and_stops_none(tmp_path: Path) -> None:
    more = "aliases: {nightly: {use: [b], priority: batch}, small: {use: [c], priority: batch}}\n"
    keys = {"a": CALLED + on_node(60), "b": CALLED + on_node(60), "c": CALLED + on_node(20)}
    async with machine(tmp_path, "a", away="b c") as there, called(there, more, keys) as gateway:
        await until_known(gateway, "a")
        aged(gateway, "a", idle=400, ran=400)
        refused = await ask(gateway, "nightly")
        assert refused.status_code == 503
        assert "a batch request does not have a stopped" in refused.text
        assert (await ask(gateway, "small")).status_code == 200
        assert there.orders == ["start c"]


async def test_a_client_that_leaves_frees_its_place_and_the_start_goes_on(tmp_path: Path) -> None:
    async with machine(tmp_path, away="a") as there, called(there, a=CALLED) as gateway:
        there.faults["start a"] = "hang"
        leaving = asking(gateway, "a")
        await there.until_asked("start a")
        leaving.cancel()
        await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="a") == 0 and gateway.idle())
        there.go_on()
        await gateway.until_ready("a")


async def test_nothing_is_started_at_boot(tmp_path: Path) -> None:
    async with machine(tmp_path, "b", away="a") as there, called(there, a=CALLED) as gateway:
        await gateway.gateway.put_in_force(gateway.gateway.snapshot)
        assert (await ask(gateway, "b")).status_code == 200
        assert (gateway.state("a"), there.orders) == (State.PARKED, [])


async def test_a_stream_gets_heartbeats_while_it_waits(tmp_path: Path) -> None:
    keys = {"a": f"{CALLED}, timeouts: {{hold: 20ms}}"}
    async with machine(tmp_path, away="a") as there, called(there, keys=keys) as gateway:
        there.faults["start a"] = "hang"
        body = chat("a", stream=True)
        async with gateway.client.stream("POST", CHAT, json=body) as answer:
            lines = answer.aiter_lines()
            assert (answer.status_code, answer.headers["x-gateway-committed"]) == (200, "early")
            assert '"delta":{}' in await anext(lines)
            there.go_on()
            assert [line async for line in lines][-2] == "data: [DONE]"


async def test_none_is_stopped_that_has_a_request_of_another_gateway_after_all(tmp_path: Path) -> None:
    keys = {"a": CALLED + on_node(60), "b": CALLED + on_node(60)}
    more = "server: {shutdown: 50ms}\n"
    async with machine(tmp_path, "a", away="b") as there, called(there, more, keys) as gateway:
        await until_known(gateway, "a")
        aged(gateway, "a", idle=400, ran=400)
        state = gateway.gateway.fleet["a"]

        def arrive(transition: Transition) -> None:
            if transition.after is State.DRAINING:
                state.shared.elsewhere = 1

        gateway.gateway.fleet.observers.transitions.append(arrive)
        assert (await ask(gateway, "b")).status_code == 503
        await gateway.until(lambda: not gateway.gateway.apps.control.starter.is_busy)
        assert (gateway.state("a"), there.orders) == (State.READY, [])
        assert gateway.gateway.apps.control.starter.failed == {}, "it was not started at all"
        state.shared.elsewhere = 0


async def test_two_that_do_not_fit_together_do_not_change_places_with_every_request(tmp_path: Path) -> None:
    keys = {"a": CALLED + on_node(60), "b": CALLED + on_node(60)}
    async with machine(tmp_path, away="a b") as there, called(there, keys=keys) as gateway:
        assert (await ask(gateway, "a")).status_code == 200
        await until_known(gateway, "a")
        answers = [await ask(gateway, name) for _ in range(10) for name in ("b", "a")]
        assert [answer.status_code for answer in answers] == [503, 200] * 10
        assert there.orders == ["start a"]


async def test_no_more_wait_for_a_start_than_the_queue_holds(tmp_path: Path) -> None:
    keys = {"a": f"{CALLED}, queue: {{length: 2}}"}
    async with machine(tmp_path, away="a") as there, called(there, keys=keys) as gateway:
        there.faults["start a"] = "hang"
        waiting = [asking(gateway, "a") for _ in range(2)]
        await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="a") == 2)
        refused = await ask(gateway, "a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "backend_warming")
        there.go_on()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}


async def explained(gateway: RunningGateway, alias: str, client: str | None = None) -> dict[str, Any]:
    asked = {"alias": alias, "client": client}
    found: dict[str, Any] = (await gateway.client.post("/admin/explain", json=asked)).json()
    return found


async def test_explain_says_what_a_request_would_cause(tmp_path: Path) -> None:
    keys = {"a": CALLED + on_node(60), "b": CALLED + on_node(60), "c": on_node(20)}
    more = "aliases: {x: [b, c], nightly: {use: [b], priority: batch}}\n"
    async with machine(tmp_path, "a", "c", away="b") as there, called(there, more, keys) as gateway:
        await until_known(gateway, "a")
        aged(gateway, "a", idle=720, ran=900)
        start = (await explained(gateway, "x"))["start"]
        assert 720 <= start["stops"].pop("a") < 740
        assert start == {
            "backend": "b", "begun": False, "stops": {}, "meanwhile": "c",
            "notes": ["fits on paper: nothing tells how much memory is free on spark now"],
        }  # fmt: skip
        alone = await explained(gateway, "b")
        assert (alone["served"], alone["order"], alone["error"], alone["start"]["meanwhile"]) == (True, [], None, None)
        refused = await explained(gateway, "nightly")
        assert (refused["served"], refused["start"], refused["error"]["code"]) == (False, None, "no_backend_available")
        assert there.orders == []
        there.faults["stop a"] = "hang"
        waiting = asking(gateway, "b")
        await there.until_asked("stop a")
        assert (await explained(gateway, "b"))["start"]["begun"]
        there.go_on()
        assert (await waiting).status_code == 200


async def test_failed_starts_are_an_alert_until_it_runs(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        hook = await stack.enter_async_context(hooked())
        there = await stack.enter_async_context(machine(tmp_path, away="a"))
        alerts = f"alerts: {{webhook: '{hook.url}'}}\n"
        gateway = await stack.enter_async_context(called(there, alerts, a=CALLED))
        there.faults["start a"] = "refuse"
        assert (await ask(gateway, "a")).status_code == 503
        await gateway.gateway.apps.alerts.check()
        await hook.until(lambda: ("start_failed", "a") in hook.told())
        there.go_on()
        await gateway.until(lambda: not gateway.gateway.apps.control.starter.is_busy)
        gateway.gateway.apps.control.starter.failed["a"].until = 0.0
        assert (await ask(gateway, "a")).status_code == 200
        await until_known(gateway, "a")
        aged(gateway, "a", ran=400)
        gateway.gateway.apps.control.starter.look()
        await gateway.gateway.apps.alerts.check()
        await hook.until(lambda: ("start_works", "a") in hook.told())
