"""`gateway import`: what it writes, what it says, and what it never overwrites."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli
from tests.apps.importing.support import DATA

SOURCE = DATA / "litellm-config.yaml"
ENVIRON = dict.fromkeys(("FAST_API_KEY", "FIREWORKS_API_KEY", "ANTHROPIC_API_KEY"), "x") | {"LITELLM_MASTER_KEY": "y"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["import", *arguments])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory with LiteLLM's config in it."""
    shutil.copy(SOURCE, tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ENVIRON:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_it_writes_a_file_that_check_accepts(folder: Path) -> None:
    result = run("litellm-config.yaml")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert "left out  litellm-config.yaml:15  model_list[1].litellm_params.rpm: backends have no rates" in result.stderr
    assert "-> routes.yaml: 7 backends, 7 aliases, 1 client;" in result.stderr
    assert "FAST_API_KEY, FIREWORKS_API_KEY, ANTHROPIC_API_KEY, LITELLM_MASTER_KEY" in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == [
        "litellm-config.yaml",
        "routes.schema.json",  # for editors, as the file's first line says
        "routes.yaml",
    ]
    checked = CliRunner(env=ENVIRON).invoke(cli, ["check"])
    assert checked.exit_code == 0, checked.output
    assert "writer: to cloud (when everything before is down)" in checked.output


def test_a_script_without_its_grammar_is_told_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "start.sh").write_text("#!/bin/sh\nvllm serve m\n")
    monkeypatch.setitem(sys.modules, "tree_sitter_bash", None)
    result = run("start.sh")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "pip install 'spark-gateway[import]'" in result.stderr
    assert not (folder / "routes.yaml").exists()


def test_what_was_left_out_also_stands_in_the_file(folder: Path) -> None:
    run("litellm-config.yaml")
    text = (folder / "routes.yaml").read_text()
    assert "#   line 15, model_list[1].litellm_params.rpm: backends have no rates" in text
    assert "# litellm-config.yaml:3, writer, reviewer, claude-*" in text
    assert "sk-" not in text


def test_json_for_scripts(folder: Path) -> None:
    told = json.loads(run("litellm-config.yaml", "--json").stdout)
    assert (told["ok"], told["from"], told["written"]) == (True, "litellm", "routes.yaml")
    note = next(note for note in told["notes"] if note["path"] == "model_list[1].litellm_params.rpm")
    assert (note["kind"], note["line"], note["file"]) == ("left_out", 15, "litellm-config.yaml")
    assert told["variables"] == [*list(ENVIRON)]
    shown = json.loads(run("litellm-config.yaml", "-o", "-", "--json").stdout)
    assert shown["written"] is None
    assert shown["routes"] == (folder / "routes.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("a: [", 1, "never closed"),
        ("model_list: [{model_name: a, litellm_params: {model: '*'}}]", 1, "nothing is written"),
        ("model_list: []\nmodel_list: []", 1, "duplicate key"),
        ("foo: 1", 2, "--from"),
        ("backends: {a: {url: 'http://h:1'}}", 2, "a routes.yaml already"),
    ],
)
def test_a_source_that_cannot_be_used(folder: Path, text: str, code: int, words: str) -> None:
    (folder / "other.yaml").write_text(text)
    result = run("other.yaml")
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert not (folder / "routes.yaml").exists()


def test_the_format_can_be_forced(folder: Path) -> None:
    (folder / "other.yaml").write_text("models: {}\npeers: {}")
    assert run("other.yaml").exit_code == 2
    assert run("other.yaml", "--from", "llama-swap").exit_code == 1
    assert run("litellm-config.yaml", "--from", "nonsense").exit_code == 2


def test_a_file_that_is_not_there_is_wrong_usage() -> None:
    assert run("none.yaml").exit_code == 2


def test_mistakes_of_the_source_as_json(folder: Path) -> None:
    (folder / "other.yaml").write_text("a: [")
    result = run("other.yaml", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"][0]["line"] is not None


# -- what starts engines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "kind", "backend"),
    [
        ("vllm-qwen36.service", "systemd", "qwen36"),
        ("guide.sh", "shell", "qwen36-35b"),
        ("compose.yaml", "compose", "writer"),
    ],
)
def test_what_starts_engines_becomes_launch_blocks_that_check_accepts(
    folder: Path, file: str, kind: str, backend: str
) -> None:
    shutil.copy(DATA / file, folder)
    told = json.loads(run(file, "--address", "192.168.1.11", "--json").stdout)
    assert (told["ok"], told["from"], backend in told["backends"]) == (True, kind, True)
    checked = CliRunner(env={"VLLM_API_KEY": "x"}).invoke(cli, ["check", "--json"])
    assert checked.exit_code == 0, checked.output


def test_an_address_that_nobody_said_is_what_check_asks_for(folder: Path) -> None:
    (folder / "start.sh").write_text("vllm serve m --port 8001\n")
    result = run("start.sh")
    assert result.exit_code == 0
    assert "import again with --address HOST" in result.stderr
    assert "Set these before serving (in the environment or .env): SPARK_ADDRESS" in result.stderr
    checked = CliRunner().invoke(cli, ["check"])
    assert (checked.exit_code, "SPARK_ADDRESS" in checked.output) == (1, True)
    assert CliRunner(env={"SPARK_ADDRESS": "192.168.1.11"}).invoke(cli, ["check"]).exit_code == 0


def test_a_unit_that_starts_its_engine_elsewhere_writes_nothing(folder: Path) -> None:
    shutil.copy(DATA / "vllm-ds4-head.service", folder)
    result = run("vllm-ds4-head.service")
    assert result.exit_code == 1
    assert "docker cp vllm_ds4:/workspace/vllm-head.sh ." in result.stderr
    assert not (folder / "routes.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["litellm-config.yaml", "--address", "spark1"], "--address is for systemd, compose, shell"),
        (["litellm-config.yaml", "--address", "http://spark1:8000"], "a host name or an address, without a port"),
    ],
)
def test_an_address_that_cannot_be_used(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
