"""Arguments that cannot be meant: each is told in a line, with exit code 2, and nothing else happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli

LONG = f"{'x' * 300}.yaml"
LABEL = "a" * 70
ROUTES = """\
backends: {qwen36: {url: "http://127.0.0.1:9", context: 65536, health: {every: none, canary: none}}}
aliases: {main: [qwen36]}
"""
LAUNCHED = """\
nodes: {s1: {address: 10.0.0.1, memory: 119GiB}}
backends:
  qwen36: {node: s1, launch: {command: "vllm serve Qwen/Qwen3-8B --port 8001 --max-model-len 65536"}}
aliases: {main: [qwen36]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GATEWAY_KEY", raising=False)
    (tmp_path / "routes.yaml").write_text(ROUTES)
    return tmp_path


def refused(*words: str, **environ: str) -> str:
    """What is said of these words."""
    found: Result = CliRunner().invoke(cli, words, env=environ)
    assert isinstance(found.exception, SystemExit), found.exception
    assert found.exit_code == 2, found.output
    return found.output


@pytest.mark.parametrize(
    "words",
    [
        ("check", LONG), ("fleet", "check", "--config", LONG), ("fleet", "status", "--config", LONG),
        ("serve", "--config", LONG), ("explain", "main", "--config", LONG), ("import", LONG, "-o", "new.yaml"),
        ("demo", "--config", LONG), ("top", "--once", "--config", LONG), ("usage", "--config", LONG),
        ("init", "127.0.0.1", "-o", LONG),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_file_that_cannot_be_looked_for(words: tuple[str, ...]) -> None:
    assert f"'{LONG}' cannot be read: File name too long" in refused(*words).replace("\n", " ")


def test_a_folder_that_may_not_be_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    assert "'secret/routes.yaml' cannot be read: Permission denied" in refused("check", "secret/routes.yaml")


def test_a_file_that_was_named_is_not_replaced_by_the_usual_gateway() -> None:
    assert "there is no file 'missing.yaml'" in refused("top", "--once", "--config", "missing.yaml")


@pytest.mark.parametrize("port", ["-1", "65536", "99999", "x"])
@pytest.mark.parametrize("command", ["serve", "demo", "sim vllm", "sim ollama"])
def test_a_port_that_is_none(command: str, port: str) -> None:
    assert "'--port'" in refused(*command.split(), "--port", port)


@pytest.mark.parametrize("factor", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("command", ["demo", "sim vllm", "sim ollama"])
def test_a_speedup_that_is_none(command: str, factor: str) -> None:
    assert "is not a number above 0: write 1, 0.5 or 20" in refused(*command.split(), "--speedup", factor)


@pytest.mark.parametrize("key", ["schlüssel", "two words", "line\nend", "\x7f"])
@pytest.mark.parametrize(
    "command", ["fleet status", "fleet switch x", "top --once", "batch status b", "probe", "explain main", "bench main"]
)
def test_a_key_that_no_header_can_carry(command: str, key: str) -> None:
    assert "a key has only ASCII characters" in refused(*command.split(), GATEWAY_KEY=key)


@pytest.mark.parametrize("words", ["fleet status --gateway", "bench", "top --once --gateway"])
def test_a_host_that_no_resolver_knows(words: str) -> None:
    found = CliRunner().invoke(cli, [*words.split(), f"http://{LABEL}:1"])
    assert isinstance(found.exception, SystemExit)
    assert found.exit_code == 2


def test_a_command_of_the_fleet_that_is_misspelled() -> None:
    assert "no command 'chek': did you mean 'check'?" in refused("fleet", "chek")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("qwen36.max-modle-len=5", "max-modle-len"),
        ("qwen36.gpu-memory-utilization=abc", "gpu-memory-utilization"),
        ("qwen36.max-model-len=", "write BACKEND.FLAG=VALUE"),
        ("qwen36", "write BACKEND.FLAG=VALUE"),
        ("qwen.max-model-len=5", "no such backend"),
    ],
)
def test_a_flag_to_plan_with_that_vllm_would_refuse(folder: Path, change: str, said: str) -> None:
    (folder / "routes.yaml").write_text(LAUNCHED)
    assert said in refused("fleet", "plan", "--set", change)
