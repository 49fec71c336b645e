"""`gateway fleet learn`: from a file, from the nodes, and what the plan makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.apps.fleet.learning import command as learning
from gateway.apps.fleet.learning.startup_log import NoLog, lines_of_file, lines_of_node
from gateway.apps.fleet.preflight.host import CommandResult
from gateway.cli.main import cli
from gateway.config.load import load
from tests.apps.fleet.learning.test_startup_log import NOW, OLD

FILE = """\
nodes:
  spark1: {address: 192.168.1.11, memory: 119.67GiB, ssh: ops@spark1}
  spark2: {address: 192.168.1.12, memory: 119.67GiB}
backends:
  qwen36:
    node: spark1
    launch:   # by hand
      command: vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --port 8001 --gpu-memory-utilization 0.85
        --max-model-len 65536 --kv-cache-dtype fp8
  own:
    node: spark2
    launch: {command: vllm serve acme/own --port 8002 --gpu-memory-utilization 0.5 --max-model-len 40960}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "routes.yaml"
    path.write_text(FILE)
    return path


def learn(file: Path, *arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["fleet", "learn", *arguments, "--config", str(file)], input=input)


def planned(file: Path, backend: str, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["fleet", "plan", "--json", "--config", str(file), *arguments])
    nodes = json.loads(result.stdout)["nodes"].values()
    return next(dict(node["backends"][backend]) for node in nodes if backend in node["backends"])


def test_a_log_is_learned_by_the_model_that_it_names(file: Path, tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text(NOW.replace("76.49", "70.00").replace("4,843,965", "4,400,000"))
    before = planned(file, "qwen36")
    result = learn(file, str(log))
    assert result.exit_code == 0, result.output
    assert "launch:   # by hand" in file.read_text()
    after = planned(file, "qwen36")
    assert (before["source"], before["kv_tokens"] == 4_400_000) == ("estimated", False)
    assert (after["source"], after["kv_tokens"], after["kv_gib"]) == ("observed", 4_400_000, 70.0)
    assert planned(file, "qwen36", "--set", "qwen36.gpu-memory-utilization=0.80")["kv_gib"] == pytest.approx(
        64.02, abs=0.02
    )


def test_what_is_unknown_becomes_known_and_is_learned_again(file: Path) -> None:
    assert planned(file, "own")["kv_tokens"] is None
    for text in (OLD, OLD.replace("149,312", "150,000")):
        assert learn(file, "-", "--backend", "own", input=text).exit_code == 0
    found = planned(file, "own")
    assert (found["kv_tokens"], found["full_windows"], found["source"]) == (150_000, 3.66, "observed")
    assert file.read_text().count("observed:") == 1
    observed = load(file, environ={}).snapshot.backends["own"].observed
    assert observed is not None
    assert (observed.utilization, observed.window, observed.cache_dtype) == (0.5, 40960, "auto")


@pytest.mark.parametrize(
    ("arguments", "text", "code", "told"),
    [
        (["-"], OLD, 1, "say whose start it is with --backend NAME"),
        (["-", "--backend", "own"], "nothing", 1, "'Available KV cache memory' is missing"),
        (["-", "--backend", "nobody"], OLD, 2, "no backend 'nobody': there are qwen36, own"),
        (["no-such.log"], None, 2, "'no-such.log' is no backend and no file"),
        (["own"], None, 1, "write nodes.spark2.ssh, or name a FILE with its log"),
    ],
)
def test_what_cannot_be_learned_is_said(
    file: Path, arguments: list[str], text: str | None, code: int, told: str
) -> None:
    result = learn(file, *arguments, input=text)
    assert (result.exit_code, file.read_text()) == (code, FILE)
    assert told in result.output


def test_a_dry_run_writes_nothing(file: Path) -> None:
    result = learn(file, "-", "--backend", "own", "--dry-run", input=OLD)
    assert result.exit_code == 0
    assert 'own: observed: {engine: "0.10.1"' in result.output
    assert file.read_text() == FILE


# -- over ssh ---------------------------------------------------------------------------------------------------------


def test_a_running_fleet_is_learned_over_ssh(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def lines(target: str, container: str) -> list[str]:
        asked.append((target, container))
        return NOW.splitlines()

    async def idle(_: object) -> dict[str, float]:
        return {"spark2": 19.74}

    monkeypatch.setattr(learning, "lines_of_node", lines)
    monkeypatch.setattr(learning, "idle_nodes", idle)
    result = learn(file)
    assert (result.exit_code, asked) == (0, [("ops@spark1", "spark-qwen36")])
    snapshot = load(file, environ={}).snapshot
    assert snapshot.backends["qwen36"].observed is not None
    assert snapshot.nodes["spark2"].reserve == round(19.7 * 2**30)
    assert planned(file, "qwen36")["kv_tokens"] == 4_843_965


def test_the_node_is_asked_for_the_lines_of_a_start_alone() -> None:
    seen = []

    def send(argv: Any, text: str, seconds: float) -> CommandResult:
        seen.append((argv, text))
        return CommandResult(0, NOW)

    assert lines_of_node("ops@spark1", "it's", send) == NOW.splitlines()
    assert seen[0][0][-3:] == ("ops@spark1", "sh", "-s")
    assert "docker logs 'it'\"'\"'s' 2>&1" in seen[0][1]
    with pytest.raises(NoLog, match="ssh ops@spark1: no route"):
        lines_of_node("ops@spark1", "x", lambda *_: CommandResult(255, error="no route"))


def test_of_a_long_file_only_the_lines_of_starts_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_text(NOW + "INFO served a request\n" * 5000)
    assert len(lines_of_file(log)) == len(NOW.splitlines())
    with pytest.raises(NoLog, match="cannot be read"):
        lines_of_file(tmp_path)
