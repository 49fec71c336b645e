"""Operations whose steps are planned and not begun: unknown modes, no room, dry runs."""

from __future__ import annotations

from pathlib import Path

from gateway.domain.health_state import State
from tests.apps.control.machine import error, gateway_of, machine, steps, switched
from tests.apps.control.test_runner_failures import MODES


async def test_an_unknown_mode_names_those_that_there_are(tmp_path: Path) -> None:
    async with machine(tmp_path, "a") as there, gateway_of(there, "{daily: [a], night: []}") as gateway:
        status, code, message = error(await gateway.client.post("/admin/mode", json={"mode": "dayly"}))
        assert (status, code, message) == (404, "not_found", "There is no mode 'dayly'. Modes: daily, night.")
        bodies: list[object] = [{}, {"mode": 3}, {"mode": "daily", "force": "yes"}, []]
        for body in bodies:
            status, code, _ = error(await gateway.client.post("/admin/mode", json=body))
            assert (status, code) == (400, "invalid_request_body")
        assert (await gateway.client.get("/admin/operations/none")).status_code == 404
        assert (await gateway.client.get("/admin/operations")).json() == {"mode": "daily", "operation": None}


async def test_a_mode_that_does_not_fit_is_refused_unless_forced(tmp_path: Path) -> None:
    nodes = "nodes: {spark1: {memory: 100GiB}}\n"
    async with machine(tmp_path, "a", away="c") as there:
        section = ", node: spark1, launch: {command: vllm serve c --gpu-memory-utilization 0.99, resident: 200GiB}"
        async with gateway_of(there, "{daily: [a], ds4: [c]}", nodes, c=section) as gateway:
            status, code, message = error(await gateway.client.post("/admin/mode", json={"mode": "ds4"}))
            assert (status, code) == (409, "operation_refused")
            assert message.startswith("spark1: ")
            assert there.orders == []
            dry = await gateway.client.post("/admin/mode", json={"mode": "ds4", "dry_run": True})
            assert dry.status_code == 200
            assert dry.json()["refusals"][0].startswith("spark1: ")
            forced = await switched(gateway, "ds4", force=True)
            assert forced["state"] == "done"
            assert forced["notes"][0].startswith("forced: spark1: ")


async def test_a_dry_run_says_the_steps_and_does_nothing(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        dry = (await gateway.client.post("/admin/mode", json={"mode": "ds4", "dry_run": True})).json()
        assert (dry["mode"], dry["before"], dry["refusals"]) == ("ds4", "daily", [])
        assert steps(dry)[2] == "stop a: waiting"
        assert dry["steps"][2]["output"] == "backends.a.stop"
        assert there.orders == []
        assert gateway.state("a") is State.READY


async def test_a_dry_run_names_the_aliases_that_lose_their_service(tmp_path: Path) -> None:
    more = "aliases: {first: [a], second: [b], third: [c], all: [a, c]}\n"
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES, more) as gateway:
        dry = (await gateway.client.post("/admin/mode", json={"mode": "ds4", "dry_run": True})).json()
        assert dry["notes"] == ["2 of 4 aliases lose their service: first, second"]
        back = (await gateway.client.post("/admin/mode", json={"mode": "daily", "dry_run": True})).json()
        assert back["notes"] == []
