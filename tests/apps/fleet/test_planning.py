"""`gateway fleet plan`: the table, the JSON, the picture, and what it says to wrong usage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from gateway.apps.fleet import planning as fleet_plan
from gateway.config.load import LoadedFile
from gateway.config.snapshot import Mode, Snapshot
from tests.apps.control.memory.sparks import QWEN4B, fleet, qwen4b, qwen36, qwen80b, vllm

TWO = Mode("two-models", ("qwen80b", "qwen4b"))
BIG = Mode("big", ("qwen80b", "wide4b"))
FLEET = fleet(
    qwen80b(0.80, 32768, 2),
    qwen4b(0.10, 16384),
    vllm("wide4b", QWEN4B, 0.30, max_model_len=32768),
    modes=(TWO, BIG),
)


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the command this fleet instead of a file's."""

    def use(snapshot: Snapshot) -> None:
        monkeypatch.setattr(fleet_plan, "load_or_exit", lambda *_, **__: LoadedFile(snapshot, []))

    use(FLEET)
    return use


def with_own_rows(folder: Path) -> Snapshot:
    return replace(FLEET, own_catalog="own.yaml", source=str(folder / "routes.yaml"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(fleet_plan.command, list(arguments))


def answer(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)


@pytest.mark.usefixtures("routes")
def test_the_first_mode_is_planned() -> None:
    done = run()
    assert done.exit_code == 0, done.output
    assert "Mode two-models" in done.output
    assert "spark1, 119.67 GiB: yes" in done.output
    assert "load qwen80b, then qwen4b" in done.output
    assert "95.7 GiB" in done.output


@pytest.mark.usefixtures("routes")
def test_a_node_that_does_not_fit_is_exit_code_1() -> None:
    done = run("big")
    assert done.exit_code == 1
    assert "the wide4b needs 35.9 GiB free, 26.9 will be" in done.output
    assert answer("big")["nodes"]["spark1"]["fits"] == "no"


@pytest.mark.usefixtures("routes")
def test_the_json_is_what_is_documented() -> None:
    node = answer()["nodes"]["spark1"]
    assert node["order"] == ["qwen80b", "qwen4b"]
    assert node["backends"]["qwen80b"] == {
        "target_gib": 95.74,
        "resident_gib": 87.7,
        "weights_gib": 74.85,
        "kv_gib": 19.99,
        "kv_tokens": 821760,
        "full_windows": 25.08,
        "source": "estimated",
    }


@pytest.mark.usefixtures("routes")
def test_an_unknown_mode_is_wrong_usage_that_lists_the_modes() -> None:
    done = run("nope")
    assert done.exit_code == 2
    assert "no mode 'nope': there are two-models, big" in done.output


def test_without_modes_a_mode_is_wrong_usage(routes: Any) -> None:
    routes(replace(FLEET, modes={}))
    done = run("daily")
    assert done.exit_code == 2
    assert "the file has no `modes`" in done.output


def test_what_is_on_no_node_is_named(routes: Any) -> None:
    routes(fleet(qwen36(0.5), replace(qwen4b(0.1, 8192), nodes=())))
    assert "Not planned, because they are on no node: qwen4b" in run().output


@pytest.mark.usefixtures("routes")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("qwen81b", "no such backend; with a launch block there are qwen80b, qwen4b, wide4b"),
        ("qwen80b", "write BACKEND.FLAG=VALUE"),
        ("nope.x=1", "no such backend"),
        ("qwen80b.max-model-len", "write BACKEND.FLAG=VALUE"),
        ("qwen80b.=1", "write BACKEND.FLAG=VALUE"),
    ],
)
def test_a_change_that_is_none_is_wrong_usage(change: str, why: str) -> None:
    done = run("--set", change)
    assert done.exit_code == 2
    assert why in " ".join(done.output.split())


def test_a_backend_without_a_command_has_no_flags(routes: Any) -> None:
    routes(fleet(replace(qwen36(0.5), launch=None)))
    done = run("--set", "qwen36.max-model-len=1")
    assert done.exit_code == 2
    assert "no launch block" in done.output


def test_changes_reach_the_plan_as_typed_values(routes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = fleet_plan._changes

    def note(*given: Any) -> dict[str, Any]:
        seen.append(real(*given))
        return {}

    monkeypatch.setattr(fleet_plan, "_changes", note)
    routes(fleet(replace(qwen36(0.5), name="a.b"), replace(qwen4b(0.1, 8192), name="a")))
    run("--set", "a.b.max-model-len=65536", "--set", "a.gpu-memory-utilization=0.2", "--set", "a.kv-cache-dtype=none")
    assert seen == [{"a.b": {"max-model-len": 65536}, "a": {"gpu-memory-utilization": 0.2, "kv-cache-dtype": "none"}}]


@pytest.mark.usefixtures("routes")
def test_the_picture_is_written(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    assert run("--svg", str(file)).exit_code == 0
    assert ElementTree.parse(file).getroot().tag.endswith("svg")


@pytest.mark.usefixtures("routes")
def test_a_picture_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    done = run("--svg", str(tmp_path / "missing" / "plan.svg"))
    assert done.exit_code == 1
    assert "cannot write" in done.output


@pytest.mark.usefixtures("routes")
def test_models_on_disk_are_read(tmp_path: Path) -> None:
    folder = tmp_path / QWEN4B
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 64}')
    (folder / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 1073741824}}')
    small = answer("--models", str(tmp_path))["nodes"]["spark1"]["backends"]["qwen4b"]
    assert small["weights_gib"] == 1.0


def test_a_catalogue_of_ones_own_wins(routes: Any, tmp_path: Path) -> None:
    own = 'models: {mine: {match: ["qwen3-4b*"], weights: {"*": 2GiB}}}\n'
    (tmp_path / "own.yaml").write_text(own)
    routes(with_own_rows(tmp_path))
    assert answer()["nodes"]["spark1"]["backends"]["qwen4b"]["weights_gib"] == 2.0


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("models: []", "models: must be a mapping"),
        ("models: {a: {weights: {x: much}}}", "models.a: 'much' is not a size"),
        ("models: {a: 5}", "models.a: must be a mapping"),
        ("models: {a: {measured: {nodes: 1}}}", "`token` is missing"),
        ("field: [{verdict: maybe}]", "`verdict` is yes or no"),
        ("field: [{verdict: no}]", "`model` is missing"),
        ("models: {", "own.yaml"),
        ("families: {a: {tool_parser: x}}", "families.a.tool_parser: unknown field"),
    ],
)
def test_a_broken_catalogue_is_a_problem(routes: Any, tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "own.yaml").write_text(content)
    routes(with_own_rows(tmp_path))
    done = run()
    assert done.exit_code == 1
    assert why in done.output


def test_a_missing_catalogue_is_a_problem(routes: Any, tmp_path: Path) -> None:
    routes(with_own_rows(tmp_path))
    assert run().exit_code == 1
