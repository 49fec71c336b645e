"""`gateway fleet preflight`: which nodes it looks at, what it prints, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.apps.fleet.preflight import run as runner
from gateway.apps.fleet.preflight.host import CommandResult
from gateway.apps.fleet.preflight.node import MARK
from gateway.cli.main import cli

ROUTES = """
nodes:
  spark1: {address: 192.168.1.11, ssh: ops@spark1}
  spark2: {address: 192.168.1.12}
backends:
  a: {node: spark1, launch: {command: vllm serve m --port 8001}}
  b: {url: "http://192.168.1.13:8001"}
"""
OK = {"check": "clock", "verdict": "ok", "seen": "the clock is synchronised"}
FAIL = {"check": "zombies", "verdict": "fail", "seen": "9999", "mend": "sudo reboot", "backend": "a"}


@pytest.fixture(autouse=True)
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What the nodes answer; a test changes the list."""
    told = [OK]

    def send(argv: Sequence[str], *_: object) -> CommandResult:
        return (
            CommandResult(0, MARK + json.dumps({"checks": told}))
            if told
            else CommandResult(255, "", "Connection refused")
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner.look_at_all, "__defaults__", (send,))
    (tmp_path / "routes.yaml").write_text(ROUTES)
    return told


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fleet", "preflight", *arguments])


def test_nothing_to_mend_and_what_was_skipped_is_said() -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert "spark1 (ssh ops@spark1): 1 ok" in result.output
    assert (
        "skipped: node spark2: node 'spark2' has no ssh: run `gateway fleet preflight --node spark2 --here`"
        in result.output
    )
    assert "skipped: backend b: has no `node`" in result.output


def test_a_failure_exits_1_with_the_command_that_mends_it(answers: list[dict[str, str]]) -> None:
    answers.append(FAIL)
    result = run()
    assert result.exit_code == 1
    assert "fail     zombies         a: 9999" in result.output
    assert "mend:  sudo reboot" in result.output


def test_a_node_that_is_not_reached_exits_1(answers: list[dict[str, str]]) -> None:
    answers.clear()
    result = run("--node", "spark1")
    assert result.exit_code == 1
    assert "spark1 (ssh ops@spark1): not reached: Connection refused" in result.output


def test_json_for_scripts(answers: list[dict[str, str]]) -> None:
    answers.append(FAIL)
    told = json.loads(run("--json").stdout)
    assert told["ok"] is False
    node = told["nodes"]["spark1"]
    assert (node["where"], node["reached"]) == ("ssh ops@spark1", True)
    assert node["checks"][1] == {**FAIL, "fact": None}
    assert [skipped["what"] for skipped in told["skipped"]] == ["node spark2", "backend b"]


def test_this_machine_needs_no_ssh() -> None:
    result = run("--node", "spark2", "--here")
    assert result.exit_code == 0
    assert "spark2 (here): 1 ok" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--here"], "--here needs --node NAME"),
        (["--node", "spark9"], "no node 'spark9': there are spark1, spark2"),
        (["--node", "spark2"], "has no ssh"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_file_without_nodes(tmp_path: Path) -> None:
    (tmp_path / "routes.yaml").write_text('backends: {b: {url: "http://192.168.1.13:8001"}}')
    result = run()
    assert result.exit_code == 2
    assert "has no node" in result.output
