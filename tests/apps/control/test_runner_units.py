"""Operations on units of systemd: what runs is asked of the node, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.apps.fleet.preflight.node import MARK
from gateway.domain.health_state import State
from tests.apps.control.machine import begin, ended, error, steps, switched
from tests.apps.control.node import fleet
from tests.apps.fleet.test_operations import ask

LOADING = ("ActiveState=activating", "SubState=start-post")
DAILY = "{daily: [a], ds4: [c]}"


async def test_a_unit_that_loads_outside_the_target_is_stopped_whatever_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        node.unit("c", *LOADING)
        done = await switched(gateway, "daily")
        assert (done["state"], steps(done)) == ("done", ["drain c: done", "stop c: done"])
        assert there.orders == ["stop c"]


async def test_one_that_comes_up_in_the_middle_is_stopped_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        there.faults["start c"] = "hang"
        begun = await begin(gateway, "ds4")
        await there.until_asked("start c")
        node.unit("a", *LOADING)
        there.go_on()
        done = await ended(gateway, begun)
        assert (done["state"], steps(done)[-1]) == ("done", "stop a: done")
        assert there.orders == ["stop a", "start c", "stop a"]


async def test_an_engine_that_loads_already_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        node.unit("c", *LOADING)
        begun = (await gateway.client.post("/admin/backends/c/start")).json()
        assert steps(begun)[:2] == ["preflight c: skipped", "start c: skipped"]
        await there.sims["c"].revive()
        assert (await ended(gateway, begun))["state"] == "done"
        assert there.orders == []


async def test_one_that_the_gateway_stopped_and_somebody_has_started_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        await ended(gateway, (await gateway.client.post("/admin/backends/a/stop")).json())
        node.unit("a", *LOADING)
        begun = (await gateway.client.post("/admin/backends/a/start")).json()
        assert steps(begun)[:2] == ["preflight a: skipped", "start a: skipped"]
        await there.sims["a"].revive()
        assert (await ended(gateway, begun))["state"] == "done"
        assert there.orders == ["stop a"]


async def test_nodes_learn_what_does_not_load_at_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, _, node):
        await switched(gateway, "ds4")
        assert node.parked == ["spark-a"]
        await switched(gateway, "daily")
        assert node.parked == ["spark-c"]


async def test_a_unit_that_somebody_stops_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        there.faults["start c"] = "ignore"
        begun = (await gateway.client.post("/admin/backends/c/start")).json()
        await there.until_asked("start c")
        node.unit("c")
        failed = await ended(gateway, begun)
        assert failed["error"] == (
            "wait c: the unit is inactive on spark1: somebody has stopped it, or the node was started anew"
        )


async def test_the_first_death_is_told_in_the_engines_own_words_and_the_second_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        there.faults["start c"] = "ignore"
        begun = (await gateway.client.post("/admin/backends/c/start")).json()
        known = gateway.gateway.apps.control.operations.get(begun["id"])
        await there.until_asked("start c")
        node.says(
            "\x1b[31mValueError: Something of mine is wrong\x1b[0m",
            "spark-c.service: Main process exited, code=exited, status=1/FAILURE",
        )
        died = ("ActiveState=activating", "SubState=auto-restart", "ExecMainStatus=1")
        node.unit("c", *died, "NRestarts=0")
        await gateway.until(lambda: bool(known.steps[2].output))
        told = "it died at its start on spark1, exit code 1: ValueError: Something of mine is wrong"
        assert (known.steps[2].state, known.steps[2].output) == ("running", told)
        status = await ask(gateway, "status")
        assert told in status.stdout
        node.unit("c", *died, "NRestarts=1")
        failed = await ended(gateway, begun)
        assert failed["error"].startswith("wait c: it died at its start on spark1, exit code 1 (2 times): ValueError")
        assert "\\x1b" not in json.dumps(failed)


async def test_a_wait_shows_the_last_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        there.faults["start c"] = "ignore"
        node.says("Loading safetensors checkpoint shards: 45%")
        begun = (await gateway.client.post("/admin/backends/c/start")).json()
        known = gateway.gateway.apps.control.operations.get(begun["id"])
        await gateway.until(lambda: "45%" in known.steps[2].sign)
        assert known.steps[2].sign == "spark1: active (running) Loading safetensors checkpoint shards: 45%"
        status = (await gateway.client.get("/admin/operations")).json()["operation"]
        assert status["steps"][2]["sign_at"] >= status["steps"][2]["began"]
        assert known.shown_to_all()["steps"][2]["sign"] == "", "the words of an engine are for admins"
        refused = error(await gateway.client.post("/admin/mode", json={"mode": "ds4"}))[2]
        for word in (
            begun["id"],
            "step `wait c` for",
            "`gateway fleet status` looks",
            "`gateway fleet cancel` ends it",
        ):
            assert word in refused
        cancelled = await ask(gateway, "cancel")
        assert (cancelled.exit_code, "Last: start c, failed" in cancelled.stdout) == (0, True)
        assert known.error == "cancelled"
        assert "`gateway fleet stop c` stops what it has begun" in cancelled.stdout
        assert (await ask(gateway, "cancel")).stdout == "Nothing is under way.\n"
        assert gateway.state("a") is State.READY


@pytest.mark.parametrize(("order", "verb"), [("stop a", "stop"), ("start c", "start")])
async def test_ssh_that_is_cut_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, verb: str
) -> None:
    monkeypatch.setattr("gateway.apps.control.units.AGAIN", 0.01)
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        (tmp_path / "cut").write_text(f"sudo systemctl {verb}")
        done = await switched(gateway, "ds4")
        assert done["state"] == "done"
        assert order in there.orders
        assert sum(f"systemctl {verb}" in line for line in node.asked) == 2


async def test_a_stop_that_worked_while_ssh_was_cut_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, node):
        node.unit("a")
        (tmp_path / "cut").write_text("sudo systemctl stop")
        done = await switched(gateway, "ds4")
        (stop,) = [step for step in done["steps"] if step["what"] == "stop"]
        assert "ssh was cut (Timeout, server ops@spark1 not responding.); spark-a on spark1: inactive" in stop["output"]
        assert "stop a" not in there.orders


async def test_a_target_that_cannot_start_leaves_what_serves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, there, _):
        checks = [{"check": "weights", "verdict": "fail", "seen": "no room", "mend": "hf download"}]
        (tmp_path / "preflight").write_text(MARK + json.dumps({"checks": checks}))
        failed = await switched(gateway, "ds4")
        assert failed["error"] == "preflight c: spark1: weights: no room"
        assert failed["hint"].startswith("nothing was stopped")
        assert (there.orders, gateway.state("a"), gateway.gateway.snapshot.mode) == ([], State.READY, "daily")
        checks = [{"check": "ports", "verdict": "fail", "seen": "port 1 is used by a", "mend": "docker stop a"}]
        (tmp_path / "preflight").write_text(MARK + json.dumps({"checks": checks}))
        assert "stop a: done" in steps(await switched(gateway, "ds4")), "a stop may mend that"


async def test_a_start_shows_what_its_preflight_warns_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=DAILY, nodes={}) as (gateway, _, _):
        checks = [{"check": "weights", "verdict": "warn", "seen": "a part is missing", "mend": "hf download"}]
        (tmp_path / "preflight").write_text(MARK + json.dumps({"checks": checks}))
        started = await ask(gateway, "start", "c")
        assert started.exit_code == 0
        assert (
            "            warning: spark1: weights: a part is missing\n            mend: hf download\n" in started.stdout
        )


async def test_nodes_start_side_by_side_and_one_node_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, nodes = "{daily: [z], ds4: [a, b, c]}", {"c": "spark2"}
    async with fleet(tmp_path, monkeypatch, "z", away="a b c", modes=modes, nodes=nodes) as (gateway, there, _):
        there.faults = {"start a": "hang"}
        begun = await begin(gateway, "ds4", force=True)
        await there.until_asked("start a")
        await there.until_asked("start c")
        await gateway.until(lambda: gateway.state("c") is State.READY)
        assert "start b" not in there.orders, "one at a time per node"
        there.go_on()
        assert (await ended(gateway, begun))["state"] == "done"
        assert there.orders[-1] == "start b"


async def test_what_fails_on_one_node_does_not_keep_the_other_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, nodes = "{daily: [z], ds4: [a, b, c]}", {"c": "spark2"}
    async with fleet(tmp_path, monkeypatch, "z", away="a b c", modes=modes, nodes=nodes) as (gateway, there, _):
        there.faults = {"start a": "refuse"}
        failed = await switched(gateway, "ds4", force=True)
        assert failed["error"] == "start a: exit code 1"
        assert {"start b: skipped", "resume c: done"} <= set(steps(failed))
        assert gateway.state("c") is State.READY
