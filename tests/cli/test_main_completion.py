"""Completion of commands, options and names in a shell."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bench.ports import free_ports
from gateway.apps.fleet import group as fleet
from gateway.cli.main import cli
from tests.cli.test_main_conventions import ROUTES, run
from tests.demo_process import ROOT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def routes(folder: Path) -> Path:
    (folder / "routes.yaml").write_text(ROUTES % free_ports(1))
    return folder


def completed(*words: str) -> list[str]:
    """What bash is offered for the last word."""
    line = shlex.join(["gateway", *words[:-1]]) + " " + words[-1]
    environ = {"_GATEWAY_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    done = subprocess.run(
        [sys.executable, "-c", "from gateway.cli.main import cli; cli(prog_name='gateway')"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return [offer.partition(",")[2] for offer in done.stdout.splitlines() if offer]


def test_commands_and_names_complete(routes: Path) -> None:
    assert completed("ex") == ["explain"]
    assert completed("explain", "") == ["reviewer", "writer", "gpt-4o", "qwen36"]
    assert completed("probe", "q") == ["qwen36"]
    assert completed("explain", "--client", "h") == ["hermes"]


def test_names_complete_from_the_file_that_was_named_and_never_fail(folder: Path) -> None:
    (folder / "other.yaml").write_text("backends: {b1: {}}\naliases: [1]\n")
    (folder / "broken.yaml").write_text("backends: {{{")
    assert completed("probe", "--config", "other.yaml", "") == ["b1"]
    assert completed("probe", "--config", "broken.yaml", "") == []
    assert completed("probe", "") == []


@pytest.mark.parametrize(("group", "begun", "name"), [(cli, "ex", "explain"), (fleet.command, "pre", "preflight")])
def test_completing_the_name_of_a_command_imports_none(
    monkeypatch: pytest.MonkeyPatch, group: click.Group, begun: str, name: str
) -> None:
    monkeypatch.setattr(group, "get_command", lambda *_: pytest.fail("a command was imported"))
    assert [offer.value for offer in group.shell_complete(click.Context(group), begun)] == [name]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_one_that_the_shell_reads(shell: str, folder: Path) -> None:
    script = run("completion", shell).stdout
    assert "_GATEWAY_COMPLETE" in script
    if shutil.which(shell) is None:
        return
    (folder / "script").write_text(script)
    assert subprocess.run([shell, "-n", "script"], cwd=folder, check=False, timeout=60).returncode == 0
