"""Every command that the pages print and that needs no running gateway does something, from a clone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.main import cli
from tests.config.test_schema_docs import ENVIRON, SHIPPED, uncommented
from tests.demo_process import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "deploy").rglob("*.md"))]
PRINTED = sorted({line for page in PAGES for line in re.findall(r"^(?:\$ )?gateway (.+)$", page.read_text(), re.M)})
ALONE = re.compile(r"(check|explain|schema|completion|fleet (check|plan|render))\b(?!.*--(live|diff))")
COMMANDS = [line for line in PRINTED if ALONE.match(line) and not re.search(r" [A-Z]{3,}\b", line)]
BODY = '{"model": "reviewer", "messages": [{"role": "user", "content": "hi"}]}'


@pytest.mark.parametrize("line", COMMANDS)
def test_a_printed_command_is_right_usage(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    for name in ("routes.yaml", "new.yaml"):
        (tmp_path / name).write_text(uncommented(SHIPPED))
    (tmp_path / "body.json").write_text(BODY)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "models").mkdir()
    line = line.partition(" > ")[0].replace("/srv/models", "models").replace("/tmp/units", "units")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, shlex.split(line, comments=True))
    assert result.exit_code < 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_the_pages_print_commands_of_each_kind() -> None:
    assert {line.split()[0] for line in COMMANDS} >= {"explain", "fleet", "completion"}
