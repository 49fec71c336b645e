"""The checks on a real machine, this one: sent to a `python3 -` that has the standard library and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.apps.fleet.preflight.host import (
    CommandResult,
    ExpectedNode,
    HostCheck,
)
from gateway.apps.fleet.preflight.node import CHECKS, MARK
from gateway.apps.fleet.preflight.run import look, look_at_all, script, ssh_command
from tests.apps.fleet.preflight.spark import DS4, QWEN
from tests.limits import within

NODE = ExpectedNode("spark1", 128, "http://127.0.0.1:9/metrics", (QWEN, DS4))


def test_the_standard_library_is_enough_and_it_takes_less_than_three_seconds(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-I", "-"]
    with within(3):
        done = subprocess.run(command, input=script(NODE), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(MARK)
    told = json.loads(done.stdout.removeprefix(MARK))
    assert {check["check"] for check in told["checks"]} == set(CHECKS)
    assert not [check for check in told["checks"] if "itself failed" in check["seen"]]


def test_this_machine_is_looked_over() -> None:
    looked = look(NODE, None)
    assert (looked.node, looked.where, looked.problem) == ("spark1", "here", None)
    assert {check.check for check in looked.checks} == set(CHECKS)


def test_over_ssh_no_password_is_asked_for_and_no_unknown_host_is_trusted() -> None:
    asked: list[list[str]] = []

    def send(argv: Sequence[str], text: str, timeout: float) -> CommandResult:
        asked.append(list(argv))
        assert "def examine" in text
        assert timeout < 60
        return CommandResult(
            0, f"Welcome to DGX OS\n{MARK}" + '{"checks": [{"check": "clock", "verdict": "ok", "seen": "yes"}]}\n'
        )

    looked = look(NODE, "ops@spark1", send)
    assert (looked.where, looked.checks) == ("ssh ops@spark1", (HostCheck("clock", "ok", "yes"),))
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10"]
    options += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=4"]
    assert asked == [["ssh", *options, "--", "ops@spark1", "python3", "-I", "-S", "-"]]


def test_a_target_is_never_an_option_of_ssh() -> None:
    command = ssh_command("-oProxyCommand=touch /tmp/x")
    assert command.index("--") < command.index("-oProxyCommand=touch /tmp/x")


@pytest.mark.parametrize(
    ("ran", "words", "mend"),
    [
        (
            CommandResult(255, "", "Host key verification failed."),
            "Host key verification failed.",
            "compare the host's key",
        ),
        (
            CommandResult(255, "", "ops@spark1: Permission denied (publickey)."),
            "Permission denied",
            "ssh-copy-id ops@spark1",
        ),
        (CommandResult(127, "", "bash: python3: command not found"), "not found", "apt-get install python3"),
        (
            CommandResult(None, "", "ssh: no answer in time"),
            "no answer in time",
            "ssh -v -o BatchMode=yes ops@spark1 true",
        ),
        (CommandResult(0, f"{MARK}not json"), "not json", "ssh -v"),
        (CommandResult(0, MARK + "[" * 100_000), "[[[", "ssh -v"),
        (CommandResult(0, MARK + '{"checks": [' + "[" * 100_000), "[[[", "ssh -v"),
        (CommandResult(0, MARK + '{"checks": [1]}'), "checks", "ssh -v"),
        (CommandResult(0, MARK + '{"checks": [{"check": "x", "verdict": "fine", "seen": "y"}]}'), "checks", "ssh -v"),
        (CommandResult(0, "\x1b[2Jhello\n"), "?[2Jhello", "ssh -v"),
    ],
)
def test_a_node_that_cannot_be_looked_over_says_why(ran: CommandResult, words: str, mend: str) -> None:
    looked = look(NODE, "ops@spark1", lambda *_: ran)
    assert looked.failed
    assert words in (looked.problem or "")
    assert mend in (looked.mend or "")


def test_what_a_node_says_cannot_steer_the_terminal() -> None:
    line = json.dumps({"checks": [{"check": "clock", "verdict": "warn", "seen": "\x1b[2J", "mend": "a\nb"}]})
    (check,) = look(NODE, "ops@spark1", lambda *_: CommandResult(0, MARK + line)).checks
    assert (check.seen, check.mend) == ("\\x1b[2J", "a\\nb")


def test_nodes_stay_in_order_and_an_exporter_that_only_the_node_reaches_is_told() -> None:
    answer = MARK + '{"checks": [{"check": "exporter", "verdict": "ok", "seen": "metrics"}]}'
    nodes = [(ExpectedNode(name, exporter="http://127.0.0.1:9/metrics"), f"ops@{name}") for name in ("b", "a")]
    looked = look_at_all(nodes, lambda *_: CommandResult(0, answer))
    assert [one.node for one in looked] == ["b", "a"]
    assert [one.checks[0].seen for one in looked] == [
        "http://127.0.0.1:9/metrics answers on the node and not from here"
    ] * 2


def test_two_nodes_of_one_engine_want_the_same_driver_and_image() -> None:
    def answer(driver: str, image: str) -> CommandResult:
        checks = [
            {"check": "driver", "verdict": "ok", "seen": driver, "fact": driver},
            {"check": "image", "verdict": "ok", "seen": "here", "backend": "ds4", "fact": image},
        ]
        return CommandResult(0, MARK + json.dumps({"checks": checks}))

    answers = {"ops@a": answer("590.48", "sha256:1"), "ops@b": answer("580.95", "sha256:2")}
    nodes = [
        (ExpectedNode("a", backends=(DS4,)), "ops@a"),
        (ExpectedNode("b", backends=(replace(DS4, worker=True),)), "ops@b"),
    ]
    head, worker = look_at_all(nodes, lambda argv, *_: answers[argv[-5]])
    assert [check.verdict for check in head.checks] == ["ok", "ok"]
    driver, image = worker.checks[2:]
    assert driver.seen == "driver 580.95 here and 590.48 on a, and the engine spans both"
    assert (image.check, image.verdict, image.backend) == ("image", "warn", "ds4")


def test_a_real_process_at_the_other_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\necho "Welcome"\nexec "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")
    looked = look(NODE, "ops@spark1")
    assert looked.problem is None
    assert {check.check for check in looked.checks} == set(CHECKS)
