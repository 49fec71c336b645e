"""The commands that start and stop a backend: units over ssh, profiles, and lines of the operator's."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.apps.control.unit_commands import SSH, start_commands, stop_commands
from gateway.config.load import load_text
from tests.apps.control.test_switching import ROUTES, snapshot


def test_the_unit_is_started_over_ssh_the_worker_first_and_stopped_head_first() -> None:
    routes = snapshot()
    both = routes.backends["both"]
    unit = "spark-both"
    start = ("sudo", "systemctl", "start", "--no-block", unit)
    assert [command.argv for command in start_commands(both, routes.nodes)[2:]] == [
        (*SSH, "ops@spark2", *start), (*SSH, "ops@spark1", *start)
    ]  # fmt: skip
    assert [command.argv for command in stop_commands(both, routes.nodes)] == [
        (*SSH, "ops@spark1", "sudo", "systemctl", "stop", unit), (*SSH, "ops@spark2", "sudo", "systemctl", "stop", unit)
    ]  # fmt: skip


@pytest.mark.parametrize("profile", ["latency", "", "it's $(id) | *\n"])
def test_the_profile_is_written_on_the_node_whole_and_for_the_launch_script(tmp_path: Path, profile: str) -> None:
    """What ssh gives to the shell of the node, run here."""
    routes = snapshot()
    choice = start_commands(routes.backends["both"], routes.nodes, profile)[0]
    assert choice.argv[: len(SSH) + 1] == (*SSH, "ops@spark2")
    (line,) = choice.argv[len(SSH) + 1 :]
    folder = tmp_path / "spark"

    def run() -> subprocess.CompletedProcess[str]:
        here = line.replace("/var/lib/spark", str(folder))
        return subprocess.run(["sh", "-c", here], capture_output=True, text=True, timeout=20, check=False)

    before = run()
    assert before.returncode == (1 if profile else 0), "a launch script of before knows no profiles"
    assert ("gateway fleet render, and install them" in before.stderr) is bool(profile)
    folder.mkdir()
    assert run().returncode == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"spark-both.profile": f"{profile}\n"}


def test_a_block_that_only_tells_what_was_measured_has_no_unit() -> None:
    tts = '  tts: {node: spark1, url: "http://192.168.1.11:8008", model: m, launch: {resident: 4GiB}}\n'
    fleet = load_text(ROUTES.replace("  small:\n", f"{tts}  small:\n", 1), environ={}).snapshot
    tts_backend = fleet.backends["tts"]
    assert start_commands(tts_backend, fleet.nodes) == stop_commands(tts_backend, fleet.nodes) == ()
    own = replace(tts_backend, start="run it", stop="stop it")
    assert [one.argv for one in start_commands(own, fleet.nodes)] == [("run", "it")]


def test_a_line_of_the_operators_is_split_as_a_shell_does_and_stays_as_written() -> None:
    routes = snapshot()
    own = routes.backends["own"]
    (start,) = start_commands(own, routes.nodes)
    assert start.argv == ("sh", "-c", "echo ${A} && docker start own")
    assert start.shown == "backends.own.start", "it may hold a secret"
    assert start_commands(routes.backends["hand"], routes.nodes) == ()
