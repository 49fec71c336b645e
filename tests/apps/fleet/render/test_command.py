"""`gateway fleet render`: what it prints, writes, masks, and its exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import cli
from tests.apps.fleet.render.blocks import FLEET

SMALL = """\
nodes: {spark1: {address: 192.0.2.1, ssh: ops@spark1}}
backends:
  it:
    node: spark1
    launch:
      image: vllm/vllm-openai:v0.23.0
      command: vllm serve org/model --port 8001 --api-key literal-key
      env: {HF_TOKEN: "${HF_TOKEN}", MY_SECRET: literal-secret}
    profiles: {long: {max-model-len: 200000}}
aliases: {a: [it]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "routes.yaml").write_text(SMALL)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fleet", "render", *arguments])


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def test_without_out_the_files_are_listed_and_nothing_is_written(folder: Path) -> None:
    result = run()
    assert result.exit_code == 0
    assert "spark1  /usr/local/lib/spark/it/launch.sh  0700" in result.stdout
    assert "MY_SECRET is written out" in result.stderr
    assert os.listdir(folder) == ["routes.yaml"]


def test_json_has_the_texts_without_their_secrets() -> None:
    result = run("--json")
    assert result.exit_code == 0
    files = {file["path"]: file for file in as_json(result)["files"]}
    script = files["/usr/local/lib/spark/it/launch.sh"]
    assert (script["node"], script["mode"], script["state"]) == ("spark1", "0700", None)
    assert "--env HF_TOKEN" in script["text"]
    assert "--port 8001" in script["text"]
    assert "literal-" not in result.output
    assert {note["severity"] for note in as_json(result)["notes"]} == {"warning"}


def test_out_writes_the_files_and_says_what_changed(folder: Path) -> None:
    first = as_json(run("--out", "fleet", "--json"))["files"]
    assert {file["state"] for file in first} == {"new"}
    script = folder / "fleet/spark1/usr/local/lib/spark/it/launch.sh"
    assert "literal-key" in script.read_text()
    assert script.stat().st_mode & 0o777 == 0o700
    assert {file["state"] for file in as_json(run("--out", "fleet", "--json"))["files"]} == {"unchanged", "kept"}
    changed = as_json(run("--out", "fleet", "--profile", "it=long", "--json"))["files"]
    assert [Path(file["path"]).name for file in changed if file["state"] == "changed"] == ["launch.sh", "compose.yaml"]
    assert "--max-model-len 200000" in script.read_text()


def test_diff_says_what_is_not_installed_and_exits_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = folder / "ssh"
    ssh.write_text('#!/bin/sh\necho "cat: $7: No such file or directory" >&2\nexit 1\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    result = run("--diff")
    assert result.exit_code == 1
    assert "spark1  /etc/systemd/system/spark-it.service  missing" in result.stdout
    assert {file["state"] for file in as_json(run("--diff", "--json"))["files"]} == {"missing"}


def test_diff_shows_lines_without_their_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("--out", "fleet")
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nshift 6\nfor file; do sed s/8001/9001/ "{folder}/fleet/spark1$file"; done\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    result = run("--diff")
    assert result.exit_code == 1
    assert "-    --port 9001 \\" in result.stdout
    assert "+    --port 8001 \\" in result.stdout
    assert "literal-" not in result.output
    ssh.write_text(f'#!/bin/sh\nshift 6\nfor file; do cat "{folder}/fleet/spark1$file"; done\n')
    assert run("--diff").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--diff", "--out", "x"),
        ("--profile", "it"),
        ("--profile", "=long"),
        ("--profile", "nobody=long"),
        ("--config", "none.yaml"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_a_backend_that_cannot_be_rendered_is_exit_code_1_and_the_others_are_there(folder: Path) -> None:
    (folder / "routes.yaml").write_text(FLEET.replace("docker: --shm-size 32gb", "docker: --shm-size 32gb what"))
    result = run()
    assert result.exit_code == 1
    assert "error: backends.coder.launch.docker: 'what' is no flag of `docker run`" in result.stderr
    assert "1 backend not rendered" in result.stderr
    assert "spark-qwen36.service" in result.stdout
    assert run("--profile", "ds4=nothing").exit_code == 1


def test_without_launch_blocks_there_is_nothing_to_render(folder: Path) -> None:
    (folder / "routes.yaml").write_text('backends: {a: {url: "http://127.0.0.1:1"}}\naliases: {b: [a]}\n')
    result = run()
    assert result.exit_code == 1
    assert "nothing to render" in result.stderr


def test_a_place_that_cannot_be_written_is_said(folder: Path) -> None:
    (folder / "fleet").write_text("")
    result = run("--out", "fleet/below")
    assert result.exit_code == 1
    assert "cannot write 'fleet/below/spark1/etc/systemd/system/spark-it.service'" in result.stderr


def test_a_file_that_was_changed_by_hand_is_left_as_it_is(folder: Path) -> None:
    assert run("--out", "fleet").exit_code == 0
    script = folder / "fleet/spark1/usr/local/lib/spark/it/launch.sh"
    rendered = script.read_text()
    script.write_text(rendered + "# mine\n")
    for _ in range(2):
        result = run("--out", "fleet")
        assert result.exit_code == 1
        assert "1 file changed by hand, left as they are: --force writes over them" in result.stderr
        assert next(line for line in result.stdout.splitlines() if "launch.sh" in line).endswith("edited")
        assert script.read_text().endswith("# mine\n")
    assert run("--out", "fleet", "--force").exit_code == 0
    assert script.read_text() == rendered
    assert run("--out", "fleet").exit_code == 0


def test_a_file_that_the_command_wrote_is_written_over(folder: Path) -> None:
    assert run("--out", "fleet").exit_code == 0
    config = folder / "routes.yaml"
    config.write_text(config.read_text().replace("8000", "8009"))
    result = run("--out", "fleet")
    assert result.exit_code == 0, result.output
    assert "changed" in result.stdout


def test_a_file_that_was_never_rendered_is_left_as_it_is(folder: Path) -> None:
    unit = folder / "fleet/spark1/etc/systemd/system/spark-it.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n")
    assert run("--out", "fleet").exit_code == 1
    assert unit.read_text() == "[Service]\n"
    assert run("--out", "fleet", "--force").exit_code == 0


def test_force_without_a_place_is_wrong_usage(folder: Path) -> None:
    assert run("--force").exit_code == 2


def test_templates_of_the_operator(folder: Path) -> None:
    (folder / "own").mkdir()
    own = folder / "own" / "unit.service.j2"
    own.write_text("[Unit]\n# {{ mark | line }}\n")
    assert run("--out", "fleet", "--templates", "own").exit_code == 0
    unit = folder / "fleet/spark1/etc/systemd/system/spark-it.service"
    assert unit.read_text() == "[Unit]\n# Rendered by gateway fleet render\n"
    own.write_text("[Unit]\n{{ mark }}\n")
    result = run("--templates", "own")
    assert result.exit_code == 1
    assert result.stderr.startswith("own/unit.service.j2:2: a value passes none of the filters")
    told = json.loads(run("--templates", "own", "--json").stdout)
    assert told["problems"][0]["message"].startswith("own/unit.service.j2:2: ")


def test_a_launch_with_an_error_is_not_rendered_without_force(folder: Path) -> None:
    config = folder / "routes.yaml"
    config.write_text(config.read_text().replace("--port 8001", "--port 8001 --max-num-seqs none"))
    result = run("--out", "fleet")
    assert result.exit_code == 1
    assert "error: backends.it: `gateway fleet check` finds an error: " in result.stderr
    assert "(flag-value); --out DIR --force renders it all the same" in result.stderr
    assert not (folder / "fleet").exists()
    assert run("--out", "fleet", "--force").exit_code == 0
    assert (folder / "fleet/spark1/usr/local/lib/spark/it/launch.sh").exists()
