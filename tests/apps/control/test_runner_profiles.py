"""Backends that are started with another profile, over an ssh whose other end is this machine."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.apps.control.runner import CommandLimits
from gateway.apps.fleet.preflight.node import MARK
from tests.apps.control.machine import Machine, ended, error, gateway_of, machine, steps, switched
from tests.apps.fleet.test_operations import ask
from tests.support import RunningGateway

MODES = "{plain: [c], long: {backends: [c], profiles: {c: latency}}, other: [a]}"
NODES = "nodes: {spark1: {ssh: ops@spark1, address: 127.0.0.1}}\n"


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(stat.S_IRWXU)


def ssh_to_here(folder: Path, there: Machine) -> None:
    """An `ssh` whose node has no systemd: what a unit of c would do is ordered of the machine, with its profile."""
    (folder / "node").mkdir()
    orders = "\n".join(
        f'  "{words} spark-c") exec {there.command(verb, "c")} ;;'
        for verb, words in (("start", "sudo systemctl start --no-block"), ("stop", "sudo systemctl stop"))
    )
    script = f"""\
while [ "$1" != -- ]; do shift; done
shift 2
case "$*" in
  python3*) cat >/dev/null; echo '{MARK}{{"checks": []}}' ;;
{orders}
  *) echo "$*" | sed 's#/var/lib/spark#{folder}/node#g' | sh ;;
esac"""
    put(folder, "ssh", script)


@asynccontextmanager
async def fleet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RunningGateway, Machine]]:
    """c is a unit on spark1, and has a profile."""
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    async with machine(folder, "c", away="a") as there:
        ssh_to_here(folder, there)
        there.lines = {"start c": "", "stop c": ""}
        port = there.sims["c"].url.rpartition(":")[2]
        section = f", node: spark1, launch: {{command: vllm serve c --port {port}, resident: 1GiB}}"
        section += ", profiles: {latency: {max-num-seqs: 2}, wide: {max-num-seqs: 9}}"
        async with gateway_of(there, MODES, NODES + f"server: {{data: {folder}/data}}\n", c=section) as gateway:
            yield gateway, there


def chosen(folder: Path) -> str:
    return (folder / "node/spark-c.profile").read_text()


async def started(gateway: RunningGateway, **order: Any) -> dict[str, Any]:
    answer = await gateway.client.post("/admin/backends/c/start", json={"force": True, **order})
    assert answer.status_code == 202, answer.text
    return await ended(gateway, answer.json())


async def test_a_switch_starts_a_backend_with_the_profile_of_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch) as (gateway, there):
        done = await switched(gateway, "long", force=True)
        assert steps(done) == [
            "preflight c: done", "drain c: done", "stop c: done",
            "preflight c: done", "start c: done", "wait c: done", "resume c: done"
        ]  # fmt: skip
        assert chosen(tmp_path) == "latency\n"
        assert done["steps"][4]["output"].startswith("ssh ops@spark1: profile latency\n")
        assert gateway.gateway.snapshot.backends["c"].slots == 2
        assert (await switched(gateway, "plain", force=True))["state"] == "done"
        assert chosen(tmp_path) == "\n"
        assert there.orders == ["stop c", "start c"] * 2


async def test_a_start_takes_a_profile_and_a_switch_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch) as (gateway, there):
        answer = await ask(gateway, "start", "c", "--profile", "wide", "--force")
        assert answer.exit_code == 0, answer.output
        assert chosen(tmp_path) == "wide\n"
        assert there.orders == ["stop c", "start c"]
        again = await started(gateway, profile="wide")
        assert (steps(again), again["notes"][0]) == (["resume c: done", "wait c: done"], "c runs already")
        assert steps(await started(gateway)) == ["resume c: done", "wait c: done"], "with whatever profile"
        assert (await switched(gateway, "plain", force=True))["state"] == "done"
        assert chosen(tmp_path) == "\n"
        assert there.orders == ["stop c", "start c"] * 2


async def test_a_profile_that_there_is_not_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, monkeypatch) as (gateway, there):
        answer = await gateway.client.post("/admin/backends/c/start", json={"profile": "fast"})
        assert error(answer) == (404, "not_found", "'c' has no profile 'fast'. Profiles: latency, wide.")
        assert (await ask(gateway, "start", "c", "--profile", "fast")).exit_code == 2
        answer = await gateway.client.post("/admin/mode", json={"mode": "long", "profile": "latency"})
        assert error(answer)[:2] == (400, "invalid_request_body")
        assert there.orders == []


async def test_a_node_that_was_installed_before_profiles_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch) as (gateway, there):
        (tmp_path / "node").rmdir()
        failed = await switched(gateway, "long", force=True)
        assert failed["error"] == "start c: exit code 1"
        assert "the files of this node know no profiles yet: gateway fleet render" in failed["steps"][4]["output"]
        back = await switched(gateway, "plain", force=True)
        assert back["state"] == "done"
        assert there.orders == ["stop c", "stop c", "start c"], "after a start that failed it may be loading"


async def test_a_unit_that_systemd_gives_up_on_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch) as (gateway, there):
        gateway.gateway.apps.control.operations.limits = CommandLimits(watch=0.3)
        there.faults["start c"] = "ignore"
        put(tmp_path, "systemctl", f"cat {tmp_path}/state")
        (tmp_path / "state").write_text("ActiveState=inactive\nExecMainStatus=0\n")
        answer = await gateway.client.post("/admin/backends/c/start", json={"force": True, "profile": "wide"})
        await there.until_asked("start c")
        (tmp_path / "state").write_text("ActiveState=activating\nExecMainStatus=78\n")
        operation = gateway.gateway.apps.control.operations.get(answer.json()["id"])
        await gateway.until(lambda: operation.steps[4].state == "running")
        (tmp_path / "state").write_text("ActiveState=failed\nExecMainStatus=78\n")
        failed = await ended(gateway, answer.json())
        why = "the unit has failed (exit code 78), and systemd starts it no more"
        assert failed["error"] == f"wait c: {why}"
        assert failed["steps"][4]["output"].endswith(f"{why}\nlook: ssh ops@spark1 journalctl -u spark-c -n 50")
        assert failed["steps"][4]["seconds"] < 15, "its start_grace is 20 s"


async def test_docker_on_this_machine_starts_and_stops_without_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with machine(tmp_path, "a", away="c") as there:
        orders = "\n".join(f'  "{verb} c") exec {there.command(verb, "c")} ;;' for verb in ("start", "stop"))
        put(tmp_path, "docker", f'case "$*" in\n{orders}\n  *) echo "$*: no such container" >&2; exit 1 ;;\nesac')
        put(tmp_path, "ssh", "exit 255")
        there.lines = {"start c": "docker start c", "stop c": "docker stop c"}
        async with gateway_of(there, "{daily: [a], ds4: [c]}") as gateway:
            assert (await switched(gateway, "ds4"))["state"] == "done"
            assert (await switched(gateway, "daily"))["state"] == "done"
            assert there.orders == ["stop a", "start c", "stop c", "start a"]


async def test_what_docker_says_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    put(tmp_path, "docker", "echo 'Error response from daemon: No such container: c' >&2; exit 1")
    async with machine(tmp_path, "a", away="c") as there:
        there.lines = {"start c": "docker start c"}
        async with gateway_of(there, "{daily: [a], ds4: [c]}") as gateway:
            failed = await switched(gateway, "ds4")
            assert failed["error"] == "start c: exit code 1"
            start = next(step for step in failed["steps"] if step["what"] == "start")
            assert "Error response from daemon: No such container: c" in start["output"]
