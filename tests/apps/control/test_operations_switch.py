"""A switch from one mode to another, with real processes as commands."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.domain.health_state import State
from tests.apps.control.machine import begin, ended, error, gateway_of, machine, steps, switched
from tests.raw_client import chat
from tests.support import from_clients

MODES = "{daily: [a, b], ds4: [c]}"


async def test_what_leaves_is_stopped_before_what_comes_is_started_and_back(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        begun = await begin(gateway, "ds4")
        assert {key: begun[key] for key in ("mode", "before", "state", "kind")} == {
            "mode": "ds4", "before": "daily", "state": "running", "kind": "switch"
        }  # fmt: skip
        done = await ended(gateway, begun)
        assert (done["state"], done["error"], done["hint"]) == ("done", None, None)
        assert steps(done) == [
            "drain a: done", "drain b: done", "stop a: done", "stop b: done",
            "preflight c: skipped", "start c: done", "wait c: done", "resume c: done",
        ]  # fmt: skip
        assert there.orders == ["stop a", "stop b", "start c"]
        stop, preflight = done["steps"][2], done["steps"][4]
        assert stop["output"] == "backends.a.stop\nstop a: done"
        assert stop["seconds"] > 0
        assert preflight["output"] == "has no `node`"
        assert (await gateway.client.post("/v1/chat/completions", json=chat("c"))).status_code == 200
        latest = (await gateway.client.get("/admin/operations")).json()
        assert latest == {"mode": "ds4", "operation": done}
        back = await switched(gateway, "daily")
        assert back["state"] == "done"
        assert there.orders[3:] == ["stop c", "start a", "start b"]
        assert gateway.state("a") is gateway.state("b") is State.READY
        assert gateway.metric("gateway_switches_total", result="done") == 2


async def test_a_stop_that_was_ordered_is_no_fall(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="c") as there, gateway_of(there, "{daily: [a], ds4: [c]}") as gateway:
        await switched(gateway, "ds4")
        await switched(gateway, "daily")
        states = {event.after for event in gateway.gateway.events if event.kind == "state"}
        assert "down" not in states
        assert gateway.gateway.fleet["a"].health.falls == 0


async def test_streams_end_by_themselves_before_their_backend_is_stopped(tmp_path: Path) -> None:
    modes = "{daily: [a], ds4: [c]}"
    async with machine(tmp_path, "a", away="c") as there, gateway_of(there, modes) as gateway:
        sim = there.sims["a"]
        sim.fault("hang_before_content", count=1)
        stream = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=chat("a", stream=True)))
        await sim.wait_inflight(1)
        begun = await begin(gateway, "ds4")
        await gateway.until(lambda: gateway.state("a") is State.DRAINING)
        refused = await gateway.client.post("/v1/chat/completions", json=chat("a"))
        assert refused.status_code == 503
        assert there.orders == []
        assert (await gateway.client.get("/admin/operations")).json()["mode"] == "daily"
        sim.clear()
        answer = await stream
        assert answer.status_code == 200
        assert answer.text.rstrip().endswith("data: [DONE]")
        assert (await ended(gateway, begun))["state"] == "done"
        assert len(from_clients(sim.requests)) >= 1


async def test_a_stream_without_end_is_cut_after_server_shutdown(tmp_path: Path) -> None:
    modes, more = "{daily: [a], ds4: [c]}", "server: {shutdown: 50ms}\n"
    async with machine(tmp_path, "a", away="c") as there, gateway_of(there, modes, more) as gateway:
        sim = there.sims["a"]
        sim.fault("hang_before_content", count=1)
        stream = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=chat("a")))
        await sim.wait_inflight(1)
        done = await switched(gateway, "ds4")
        assert done["state"] == "done"
        assert done["steps"][0]["output"] == "1 still ran after 0.05 s (server.shutdown): cut by the stop"
        assert (await stream).status_code >= 400


async def test_one_operation_at_a_time(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        there.faults["stop a"] = "hang"
        first, second = await asyncio.gather(
            gateway.client.post("/admin/mode", json={"mode": "ds4"}),
            gateway.client.post("/admin/mode", json={"mode": "ds4"}),
        )
        answers = sorted((first, second), key=lambda answer: answer.status_code)
        assert [answer.status_code for answer in answers] == [202, 409]
        await there.until_asked("stop a")
        for path in ("/admin/backends/c/start", "/admin/backends/b/stop"):
            status, code, message = error(await gateway.client.post(path))
            assert (status, code) == (409, "operation_running")
            assert answers[0].json()["id"] in message
        there.go_on()
        assert (await ended(gateway, answers[0].json()))["state"] == "done"


async def test_every_step_is_an_event(tmp_path: Path) -> None:
    modes = "{daily: [a], ds4: [c]}"
    async with machine(tmp_path, "a", away="c") as there, gateway_of(there, modes) as gateway:
        await switched(gateway, "ds4")
        seen = (await gateway.client.get("/status")).json()["events"]
        found = [(e["backend"], e["reason"], e["state"]) for e in seen if e["kind"] == "operation"]
        assert found[:3] == [
            ("a", "switch to ds4: drain a", "running"),
            ("a", "switch to ds4: drain a", "done"),
            ("a", "switch to ds4: stop a", "running"),
        ]
        assert found[-1] == ("", "switch to ds4", "done")


async def test_what_runs_already_is_left_alone(tmp_path: Path) -> None:
    modes = "{daily: [a, b], more: [a, c]}"
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, modes) as gateway:
        assert (await switched(gateway, "more"))["state"] == "done"
        assert there.orders == ["stop b", "start c"]
        assert (await switched(gateway, "more"))["steps"] == []


async def test_one_backend_is_stopped_and_started(tmp_path: Path) -> None:
    async with machine(tmp_path, "a") as there, gateway_of(there, "{daily: [a]}") as gateway:
        begun = await gateway.client.post("/admin/backends/a/stop")
        assert begun.status_code == 202
        assert steps(await ended(gateway, begun.json())) == ["drain a: done", "stop a: done"]
        assert gateway.state("a") is State.DRAINING
        assert gateway.gateway.fleet["a"].health.reason == "stopped by the gateway"
        begun = await gateway.client.post("/admin/backends/a/start")
        assert (await ended(gateway, begun.json()))["state"] == "done"
        assert there.orders == ["stop a", "start a"]
        assert gateway.state("a") is State.READY
        assert gateway.metric("gateway_switches_total", result="done") == 0
