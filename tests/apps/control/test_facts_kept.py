"""Backends that requests start: beside modes and their switches, and over the end of the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.apps.control.facts import FILE, Use, UseTracker
from gateway.apps.control.record import INTERRUPTED
from gateway.domain.health_state import State
from tests.apps.control.machine import FAST, Machine, begin, ended, gateway_of, machine, steps, switched
from tests.apps.control.requested import CALLED, CHAT, ask, asking
from tests.gateway_process import GatewayProcess, gateway_process
from tests.raw_client import chat
from tests.waiting import until, until_said

MODES = "{daily: [a], ds4: [c]}"


async def test_it_is_in_no_mode_and_starts_beside_any(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="b c") as there, gateway_of(there, MODES, b=CALLED) as gateway:
        await gateway.until(lambda: gateway.state("b") is State.PARKED)
        assert (await ask(gateway, "b")).status_code == 200
        assert there.orders == ["start b"]
        assert (await ask(gateway, "c")).status_code == 503, "what the mode parks is started by no request"


async def test_a_switch_stops_it_and_then_a_request_may_start_it_again(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES, b=CALLED) as gateway:
        done = await switched(gateway, "ds4")
        assert steps(done)[2:4] == ["stop a: done", "stop b: done"]
        assert gateway.state("b") is State.PARKED
        assert (await ask(gateway, "b")).status_code == 200
        assert gateway.state("c") is State.READY


async def test_nothing_is_started_during_a_switch(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="b c") as there, gateway_of(there, MODES, b=CALLED) as gateway:
        await gateway.until(lambda: gateway.state("b") is State.PARKED)
        there.faults["stop a"] = "hang"
        begun = await begin(gateway, "ds4")
        await there.until_asked("stop a")
        refused = await ask(gateway, "b")
        assert (refused.status_code, "nothing is started during the switch to ds4" in refused.text) == (503, True)
        there.go_on()
        assert (await ended(gateway, begun))["state"] == "done"
        assert (await ask(gateway, "b")).status_code == 200


async def test_behind_a_start_by_an_operator_it_waits_for_its_turn(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="b c") as there, gateway_of(there, MODES, b=CALLED) as gateway:
        await gateway.until(lambda: gateway.state("b") is State.PARKED)
        there.faults["start c"] = "hang"
        begun = (await gateway.client.post("/admin/backends/c/start", json={"force": True})).json()
        await there.until_asked("start c")
        waiting = asking(gateway, "b")
        await gateway.until(lambda: gateway.state("b") is State.WARMING)
        assert there.orders == ["start c"]
        there.go_on()
        await ended(gateway, begun)
        assert (await waiting).status_code == 200


async def test_a_start_for_a_request_gives_way_to_a_switch(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="b c") as there, gateway_of(there, MODES, b=CALLED) as gateway:
        await gateway.until(lambda: gateway.state("b") is State.PARKED)
        there.faults["start b"] = "ignore"
        waiting = asking(gateway, "b")
        await there.until_asked("start b")
        done = await switched(gateway, "ds4")
        assert done["state"] == "done"
        assert steps(done)[:4] == ["drain a: done", "drain b: done", "stop a: done", "stop b: done"]
        there.go_on()
        assert (await waiting).status_code == 503, "the mode changes"
        assert gateway.metric("gateway_requested_starts_total", backend="b", result="gave_way") == 1
        assert gateway.gateway.apps.control.starter.failed == {}
        assert (await ask(gateway, "b")).status_code == 200


async def test_what_an_operator_has_stopped_no_request_starts(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES, b=CALLED) as gateway:
        await ended(gateway, (await gateway.client.post("/admin/backends/b/stop")).json())
        assert (await ask(gateway, "b")).status_code == 503
        assert there.orders == ["stop b"]
        assert (await gateway.client.post("/admin/backends/b/resume")).status_code == 200
        await gateway.until(lambda: gateway.state("b") is State.PARKED)
        assert (await ask(gateway, "b")).status_code == 200


# -- kill -9 ----------------------------------------------------------------------------------------------------------


def routes_of(there: Machine) -> str:
    return f"{FAST}backends:\n{there.backend('a', CALLED + ', stop_after: 1h')}"


async def backend_of(gateway: GatewayProcess) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.client.get("/status")).json()["backends"]["a"]
    return found


async def until_state(gateway: GatewayProcess, state: str) -> dict[str, Any]:
    async def is_so() -> dict[str, Any] | None:
        found = await backend_of(gateway)
        return found if found["state"] == state else None

    return await until_said(is_so)


async def test_after_kill_9_the_running_engine_is_known_and_its_idle_time_goes_on(tmp_path: Path) -> None:
    kept = tmp_path / "state" / FILE
    async with machine(tmp_path, away="a") as there:
        async with gateway_process(tmp_path, routes_of(there)) as gateway:
            assert (await gateway.client.post(CHAT, json=chat("a"))).status_code == 200
            await until(kept.exists)
            os.kill(gateway.pid, signal.SIGKILL)
        stored = json.loads(kept.read_text())
        stored["a"]["used_at"] -= 1000
        kept.write_text(json.dumps(stored))
        async with gateway_process(tmp_path, routes_of(there)) as gateway:
            found = await until_state(gateway, "ready")
            assert 1000 <= found["idle"] < 1100
            assert there.orders == ["start a"]
            stored["a"]["used_at"] -= 4000
            os.kill(gateway.pid, signal.SIGKILL)
        kept.write_text(json.dumps(stored))
        async with gateway_process(tmp_path, routes_of(there)) as gateway:
            await there.until_asked("stop a")
            await until_state(gateway, "parked")


async def test_after_kill_9_a_start_that_was_under_way_is_waited_for(tmp_path: Path) -> None:
    async with machine(tmp_path, away="a") as there:
        there.faults["start a"] = "hang"
        async with gateway_process(tmp_path, routes_of(there)) as gateway:
            asked = asyncio.create_task(gateway.client.post(CHAT, json=chat("a")))
            await there.until_asked("start a")
            os.kill(gateway.pid, signal.SIGKILL)
            assert isinstance((await asyncio.gather(asked, return_exceptions=True))[0], httpx.HTTPError)
        async with gateway_process(tmp_path, routes_of(there)) as gateway:
            operation = (await gateway.client.get("/admin/operations")).json()["operation"]
            assert (operation["cause"], operation["error"]) == ("request", INTERRUPTED)
            found = await until_state(gateway, "warming")
            assert found["reason"] == "was being started when the gateway ended"
            waiting = asyncio.create_task(gateway.client.post(CHAT, json=chat("a")))
            await there.sims["a"].revive()
            assert (await waiting).status_code == 200
            assert there.orders == ["start a"]


# -- the file of idle times -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "\xff", '{"a": {"ran_since": "x", "used_at": 0}}'])
def test_a_file_that_cannot_be_read_makes_idle_times_begin_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, "latin-1")
    use = UseTracker(tmp_path)
    use.load()
    assert use.known == {}


def test_times_of_a_clock_that_was_set_back_are_not_in_the_future(tmp_path: Path) -> None:
    use = UseTracker(tmp_path)
    use.known = {"a": Use(ran_since=9e12, used_at=9e12)}
    use.save(use.encode())
    again = UseTracker(tmp_path)
    again.load()
    assert again.idle("a") == pytest.approx(0.0, abs=5.0)
