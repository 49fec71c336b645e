"""`gateway fleet switch`, `start`, `stop` and `status`: what they print, and their exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli
from tests.apps.control.machine import gateway_of, machine
from tests.support import RunningGateway

MODES = "{daily: [a, b], ds4: [c]}"
FILE = """\
server: {listen: "127.0.0.1:9"}
nodes: {spark1: {address: 127.0.0.1, memory: 100GiB, ssh: ops@spark1}}
backends:
  a: {node: spark1, launch: {command: vllm serve a --port 9 --gpu-memory-utilization 0.5, resident: 50GiB}}
  b:
    node: spark1
    launch: {command: vllm serve b --port 9 --gpu-memory-utilization 0.5, resident: 150GiB}
    profiles: {latency: {max-num-seqs: 1}}
modes: {daily: [a], much: [b]}
"""


def run(*arguments: str) -> Result:
    return CliRunner(env={"GATEWAY_KEY": ""}).invoke(cli, ["fleet", *arguments])


async def ask(gateway: RunningGateway, *arguments: str) -> Result:
    return await asyncio.to_thread(run, *arguments, "--gateway", gateway.url)


async def test_each_step_is_shown_as_it_goes(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        done = await ask(gateway, "switch", "ds4")
        assert done.exit_code == 0, done.output
        lines = [line.split() for line in done.stdout.splitlines()]
        ended = [line[1:3] for line in lines if line[0] in ("done", "skipped")]
        assert ended == [
            ["drain", "a"], ["drain", "b"], ["stop", "a"], ["stop", "b"],
            ["preflight", "c"], ["start", "c"], ["wait", "c"], ["resume", "c"],
        ]  # fmt: skip
        assert done.stdout.endswith("Done.\n")
        status = await ask(gateway, "status")
        assert status.exit_code == 0
        assert status.stdout.startswith("Mode: ds4\nLast: switch to ds4, done\na  ")
        as_json = json.loads((await ask(gateway, "status", "--json")).stdout)
        assert (as_json["mode"], as_json["backends"]["c"]["state"]) == ("ds4", "ready")
        back = json.loads((await ask(gateway, "switch", "daily", "--json")).stdout)
        assert (back["state"], back["mode"]) == ("done", "daily")


async def test_a_failed_switch_exits_1_with_the_way_back(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        there.faults["start c"] = "refuse"
        failed = await ask(gateway, "switch", "ds4")
        assert failed.exit_code == 1
        assert "            it cannot be\n            exit code 1\n" in failed.stdout
        assert "Failed: start c: exit code 1" in failed.stderr
        assert "`gateway fleet switch daily` goes back" in failed.stderr
        status = await ask(gateway, "status")
        assert "Last: switch to ds4, failed" in status.stdout
        assert "Failed: start c: exit code 1" in status.stdout


async def test_a_dry_run_asks_the_gateway_and_does_nothing(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES) as gateway:
        dry = await ask(gateway, "switch", "ds4", "--dry-run")
        assert dry.exit_code == 0
        assert dry.stdout.startswith("From daily to ds4:\nwaiting   drain      a\n")
        assert "waiting   stop       a  backends.a.stop\n" in dry.stdout
        assert there.orders == []


# -- without a gateway ------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "routes.yaml").write_text(FILE)
    return tmp_path


@pytest.mark.usefixtures("file")
def test_without_a_gateway_a_dry_run_uses_the_file() -> None:
    dry = run("switch", "much", "--dry-run", "--json")
    assert dry.exit_code == 1
    found = json.loads(dry.stdout)
    assert (found["ok"], found["before"], found["mode"]) == (False, "daily", "much")
    assert found["notes"][0].endswith("so this is as if mode daily were in force and ran")
    (stop,) = [step for step in found["steps"] if step["what"] == "stop"]
    assert stop == {
        "backend": "a", "what": "stop", "state": "waiting", "seconds": None, "began": None, "sign": "", "sign_at": None,
        "output": "ssh ops@spark1 sudo systemctl stop spark-a",
    }  # fmt: skip
    assert found["refusals"][0].startswith("spark1: ")
    assert run("switch", "much", "--dry-run", "--force").exit_code == 0
    assert run("switch", "daily", "--dry-run").stdout.endswith("Nothing to do.\n")
    assert run("switch", "nothing", "--dry-run").exit_code == 2
