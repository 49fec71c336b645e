"""Switches that fail: they stop there, say what ran, and leave what works serving."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.apps.control.runner import CommandLimits
from gateway.apps.fleet.preflight.host import ExpectedNode
from gateway.apps.fleet.preflight.run import NodeReport
from gateway.domain.health_state import State
from tests.apps.control.machine import begin, ended, gateway_of, machine, steps, switched
from tests.editing import Editor
from tests.raw_client import chat
from tests.support import RunningGateway

MODES = "{daily: [a, b], ds4: [c]}"
BACK = "`gateway fleet switch ds4` does what is left, `gateway fleet switch daily` goes back"


async def test_a_start_that_hangs_is_killed(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        gateway.gateway.apps.control.operations.limits = CommandLimits(start=0.5)
        there.faults["start c"] = "hang"
        failed = await switched(gateway, "ds4")
        assert (failed["state"], failed["hint"]) == ("failed", BACK)
        assert failed["error"] == "start c: did not end within 0.5 s"
        assert steps(failed)[4:] == [
            "preflight c: skipped", "start c: failed", "wait c: skipped", "resume c: skipped"
        ]  # fmt: skip
        assert (await gateway.client.get("/admin/operations")).json()["mode"] == "ds4"
        there.go_on()
        assert (await switched(gateway, "daily"))["state"] == "done"
        assert gateway.state("a") is gateway.state("b") is State.READY
        assert gateway.metric("gateway_switches_total", result="failed") == 1


async def test_a_start_that_dies_is_not_waited_for_longer_than_start_grace(tmp_path: Path) -> None:
    grace = ", health: {start_grace: 300ms}"
    async with (
        machine(tmp_path, "a", away="c") as there,
        gateway_of(there, "{daily: [a], ds4: [c]}", c=grace) as gateway,
    ):
        there.faults["start c"] = "ignore"
        failed = await switched(gateway, "ds4")
        assert steps(failed)[-3:] == ["start c: done", "wait c: failed", "resume c: skipped"]
        assert failed["error"].startswith("wait c: does not serve after 0.3 s (health.start_grace): ")


async def test_a_command_that_fails_says_what_it_wrote(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        there.faults["start c"] = "refuse"
        failed = await switched(gateway, "ds4")
        assert failed["steps"][5]["output"] == "backends.c.start\nit cannot be\nexit code 1"


async def test_what_was_drained_and_not_stopped_serves_again(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        there.faults["stop a"] = "refuse"
        failed = await switched(gateway, "ds4")
        assert failed["error"] == "stop a: exit code 1"
        assert gateway.state("a") is gateway.state("b") is State.READY
        assert (await gateway.client.get("/admin/operations")).json()["mode"] == "daily"
        there.faults = {"stop b": "refuse"}
        failed = await switched(gateway, "ds4")
        assert failed["hint"] == BACK
        assert gateway.state("a") is not State.READY, "it is stopped"
        assert (await gateway.client.get("/admin/operations")).json()["mode"] == "ds4"


async def test_what_could_not_be_stopped_is_used_again_on_the_way_back(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        there.faults["stop b"] = "refuse"
        failed = await switched(gateway, "ds4")
        assert (failed["error"], failed["hint"]) == ("stop b: exit code 1", BACK)
        assert gateway.state("b") is State.PARKED
        there.faults["start a"] = "refuse"
        half = await switched(gateway, "daily")
        assert steps(half)[:3] == ["resume b: done", "preflight a: skipped", "start a: failed"]
        answer = await gateway.client.post("/v1/chat/completions", json=chat("b"))
        assert answer.status_code == 200, "it serves, though the other one does not start"
        there.faults.clear()
        assert (await switched(gateway, "daily"))["state"] == "done"
        assert there.orders == ["stop a", "stop b", "start a", "start a"], "b was never restarted"
        assert gateway.state("a") is gateway.state("b") is State.READY


async def test_what_could_not_be_stopped_and_is_gone_by_now_is_started_on_the_way_back(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        there.faults["stop b"] = "refuse"
        await switched(gateway, "ds4")
        await there.sims["b"].terminate(0.0)
        await gateway.until(lambda: gateway.gateway.fleet["b"].health.oks == 0)
        assert (await switched(gateway, "daily"))["state"] == "done"
        assert sorted(there.orders[2:]) == ["start a", "start b"]


async def test_what_could_not_be_stopped_is_stopped_by_the_next_try(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        there.faults["stop b"] = "refuse"
        await switched(gateway, "ds4")
        there.faults.clear()
        assert (await switched(gateway, "ds4"))["state"] == "done"
        assert there.orders == ["stop a", "stop b", "stop b", "start c"]


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="c") as there:
        there.lines["start c"] = f"{tmp_path}/nothing"
        async with gateway_of(there, "{daily: [a], ds4: [c]}") as gateway:
            failed = await switched(gateway, "ds4")
            assert failed["error"] == f"start c: {tmp_path}/nothing cannot be run: No such file or directory"


def fake_ssh(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an `ssh` first in the PATH."""
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


async def test_ssh_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ssh(tmp_path, "echo 'ssh: connect to host spark1 port 22: No route to host' >&2; exit 255", monkeypatch)
    nodes = "nodes: {spark1: {ssh: ops@spark1}}\n"
    async with (
        machine(tmp_path, "a", away="c") as there,
        gateway_of(there, "{daily: [a], ds4: [c]}", nodes, c=", node: spark1") as gateway,
    ):
        failed = await switched(gateway, "ds4")
        assert steps(failed)[2:] == [
            "preflight c: failed", "start c: skipped", "wait c: skipped", "resume c: skipped"
        ]  # fmt: skip
        assert failed["error"].startswith("preflight c: spark1 (ssh ops@spark1) was not reached: ")
        assert "spark1 (ssh ops@spark1) was not reached" in failed["steps"][2]["output"]
        assert "No route to host" in failed["steps"][2]["output"]
        assert there.orders == ["stop a"]
        assert (await switched(gateway, "ds4", force=True))["state"] == "done", "forced past the preflight"


async def test_a_start_is_looked_over_with_the_profile_of_the_mode_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []

    def look(nodes: Sequence[tuple[ExpectedNode, str | None]]) -> list[NodeReport]:
        asked.extend(backend.utilization for node, _ in nodes for backend in node.backends)
        return []

    monkeypatch.setattr("gateway.apps.fleet.preflight.run.look_at_all", look)
    nodes = "nodes: {spark1: {ssh: ops@spark1, address: 127.0.0.1}}\n"
    modes = "{small: {backends: [a, c], profiles: {c: small}}, large: [c]}"
    async with machine(tmp_path, "a", away="c") as there:
        command = f"vllm serve c --port {there.sims['c'].url.rpartition(':')[2]} --gpu-memory-utilization 0.8"
        c = f", node: spark1, launch: {{command: {command}}}, profiles: {{small: {{gpu-memory-utilization: 0.3}}}}"
        async with gateway_of(there, modes, nodes, c=c) as gateway:
            answer = await gateway.client.post("/admin/backends/c/start", json={"force": True})
            assert (await ended(gateway, answer.json()))["state"] == "done"
            assert asked == [0.3]


async def test_units_are_started_over_ssh_with_strict_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ssh(tmp_path, f'echo "$@" >> {tmp_path}/asked; exit 0', monkeypatch)
    nodes = "nodes: {spark1: {ssh: ops@spark1, address: 127.0.0.1}}\n"
    async with machine(tmp_path, "a", away="c") as there:
        launch = f", node: spark1, launch: {{command: vllm serve c --port {there.sims['c'].url.rpartition(':')[2]}}}"
        there.lines = {"start c": "", "stop c": ""}
        health = ", health: {start_grace: 50ms}"
        async with gateway_of(there, "{daily: [a], ds4: [c]}", nodes, c=launch + health) as gateway:
            failed = await switched(gateway, "ds4", force=True)
            assert failed["steps"][4]["output"] == "ssh ops@spark1 sudo systemctl start spark-c"
            assert failed["error"].startswith("wait c: does not serve after 0.05 s")
            assert failed["steps"][5]["output"].endswith("\nlook: ssh ops@spark1 journalctl -u spark-c -n 50")
            asked = (tmp_path / "asked").read_text().splitlines()
            strict = "-o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=10"
            cut = "-o ServerAliveInterval=5 -o ServerAliveCountMax=4"
            assert f"{strict} {cut} -- ops@spark1 sudo systemctl start --no-block spark-c" in asked
            assert all(line.startswith(f"{strict} {cut} -- ops@spark1 ") for line in asked if line.startswith("-o"))


async def editor_of(gateway: RunningGateway, file: Path) -> Editor:
    editor = Editor(gateway, file)
    gateway.gateway.on_event.append(editor.note)
    return editor


async def test_an_edit_in_mid_switch_changes_nothing_of_it(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES, file=file) as gateway:
        editor = await editor_of(gateway, file)
        there.faults["stop a"] = "hang"
        begun = await begin(gateway, "ds4")
        await there.until_asked("stop a")
        await editor.edit("daily: [a, b]", "daily: [a]")
        await editor.edit("start c", "start nothing")
        there.go_on()
        assert (await ended(gateway, begun))["state"] == "done"
        assert there.orders == ["stop a", "stop b", "start c"]


@pytest.mark.parametrize("what", ["mode", "backend"])
async def test_what_an_edit_takes_out_is_not_waited_for(tmp_path: Path, what: str) -> None:
    file = tmp_path / "routes.yaml"
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES, file=file) as gateway:
        editor = await editor_of(gateway, file)
        order = "stop a" if what == "mode" else "start c"
        there.faults[order] = "hang"
        begun = await begin(gateway, "ds4")
        await there.until_asked(order)
        if what == "mode":
            await editor.edit(", ds4: [c]", "")
        else:
            await editor.save("\n".join(x for x in editor.text.splitlines() if " c:" not in x).replace("[c]", "[a]"))
        there.go_on()
        failed = await ended(gateway, begun)
        assert "was taken out of routes.yaml while this ran" in failed["error"]
        if what == "mode":
            assert gateway.state("b") is State.READY
        else:
            start = next(step for step in failed["steps"] if step["what"] == "start")
            assert start["output"].startswith("backends.c.start\nstart c: done\n"), "it runs"


async def test_a_backend_that_an_edit_renames_is_not_waited_for_and_may_be_started_under_its_new_name(
    tmp_path: Path,
) -> None:
    file = tmp_path / "routes.yaml"
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES, file=file) as gateway:
        editor = await editor_of(gateway, file)
        there.faults["start c"] = "hang"
        begun = await begin(gateway, "ds4")
        await there.until_asked("start c")
        await editor.save(editor.text.replace("  c: {", "  d: {").replace("[c]", "[d]"))
        there.go_on()
        failed = await ended(gateway, begun)
        assert failed["error"] == "start c: was taken out of routes.yaml while this ran"
        await gateway.until(lambda: gateway.state("d") is State.READY)
        assert (await switched(gateway, "ds4"))["steps"] == [], "it runs already"


async def test_a_backend_that_an_edit_moves_is_waited_for_where_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    async with machine(tmp_path, "a", "b", away="c d") as there, gateway_of(there, MODES, file=file) as gateway:
        editor = await editor_of(gateway, file)
        there.faults["start c"] = "hang"
        begun = await begin(gateway, "ds4")
        await there.until_asked("start c")
        await there.sims["d"].revive()
        there.sims["d"].served = ["c"]
        await editor.save(
            editor.text.replace(f"c: {{url: '{there.sims['c'].url}'", f"c: {{url: '{there.sims['d'].url}'")
        )
        there.faults["start c"] = "ignore"
        there.go_on({"start c": "ignore"})
        assert (await ended(gateway, begun))["state"] == "done"
