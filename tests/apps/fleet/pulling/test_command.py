"""`gateway fleet pull` on two nodes that are folders: downloaded once, copied, verified, kept for the plan, pinned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.apps.fleet.pulling import node as node_program
from gateway.apps.fleet.pulling.files import Broken
from gateway.cli.main import cli
from gateway.config.load import load
from tests.apps.fleet.pulling.machines import COMMIT, FILES, hub_server, index, install

FILE = """\
server: {{data: "{data}"}}
nodes:
  spark1: {{address: 192.168.1.11, memory: 119.67GiB, ssh: ops@spark1, link: link1}}
  spark2: {{address: 192.168.1.12, memory: 119.67GiB, ssh: ops@spark2, link: spark2}}
  spark3: {{address: 192.168.1.13}}
backends:
  big:
    node: [spark1, spark2]
    launch:   # by hand
      image: vllm/vllm-openai:v0.33.0
      command: >-
        acme/big --port 8000 --tensor-parallel-size 2 --nnodes 2 --master-addr 10.0.0.1
      env: {{HF_HOME: /models}}
      volumes: ["~/weights:/models"]
  plain: {{url: "http://192.168.1.11:1"}}
"""
MODEL = "weights/hub/models--acme--big"


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    programs = install(tmp_path)
    for name in ("spark1", "spark2"):
        (tmp_path / name).mkdir()
    (tmp_path / "routes.yaml").write_text(FILE.format(data=tmp_path / "state"))
    with hub_server() as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        yield tmp_path


def pull(machines: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fleet", "pull", *arguments, "--config", str(machines / "routes.yaml")])


def log(machines: Path, name: str) -> list[str]:
    path = machines / f"{name}.log"
    return path.read_text().splitlines() if path.exists() else []


def content(machines: Path, node: str) -> dict[str, bytes]:
    folder = machines / node / MODEL / "snapshots" / COMMIT
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_weights_and_image_are_fetched_once_and_copied_over_the_link(machines: Path) -> None:
    result = pull(machines, "big")
    assert result.exit_code == 0, result.output
    assert content(machines, "spark1") == content(machines, "spark2") == FILES
    assert (machines / "spark2" / MODEL / "refs" / "main").read_text() == COMMIT
    assert (log(machines, "hf"), log(machines, "rsync")) == (["ops@spark1"], ["ops@spark1 ops@spark2"])
    assert log(machines, "pull") == ["ops@spark1"]
    assert (machines / "spark2" / "image").read_text() == "sha256:1"
    assert "spark2: acme/big is complete" in result.output
    kept = machines / "state" / "models" / "acme" / "big"
    assert json.loads((kept / "model.safetensors.index.json").read_text()) == {"metadata": {"total_size": 7000}}


def test_a_pull_whose_config_cannot_be_kept_is_whole_and_says_where_and_what_to_do(machines: Path) -> None:
    (machines / "state").mkdir()
    (machines / "state" / "models").write_text("in the way")
    result = pull(machines, "big")
    assert result.exit_code == 0, result.output
    assert f"cannot be kept for the plan: {machines}/state/models" in result.output
    assert "gateway fleet plan --models" in result.output


def test_what_is_there_is_not_moved_again(machines: Path) -> None:
    assert pull(machines, "big").exit_code == 0
    result = pull(machines, "big")
    assert result.exit_code == 0
    assert "all here" in result.output
    assert (len(log(machines, "hf")), len(log(machines, "rsync")), len(log(machines, "pull"))) == (1, 1, 1)


def test_a_node_that_has_it_gives_it_and_a_broken_file_is_fetched_again(machines: Path) -> None:
    assert pull(machines, "big", "--to", "spark2", "--only", "weights").exit_code == 0
    assert log(machines, "hf") == ["ops@spark2"]
    damaged = next((machines / "spark2" / MODEL / "blobs").iterdir())
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    result = pull(machines, "big", "--to", "spark2", "--only", "weights")
    assert result.exit_code == 1
    assert "not as the index says: run it again" in result.output
    assert pull(machines, "big", "--to", "spark2", "--only", "weights").exit_code == 0
    assert content(machines, "spark2") == FILES
    assert pull(machines, "big", "--to", "spark2", "--only", "weights", "--sizes").exit_code == 0


def test_a_dry_run_moves_nothing(machines: Path) -> None:
    result = pull(machines, "big", "--dry-run")
    assert result.exit_code == 0
    assert "spark1: acme/big@aaaaaaa: 0.0 GiB of 0.0 GiB are missing" in result.output
    assert "spark2: image vllm/vllm-openai:v0.33.0 is not here" in result.output
    assert (content(machines, "spark1"), log(machines, "hf"), log(machines, "pull")) == ({}, [], [])


def test_the_commit_is_pinned_where_that_is_asked_for(machines: Path) -> None:
    result = pull(machines, "big", "--pin")
    assert result.exit_code == 0, result.output
    assert "write --revision ${MODEL_REVISION} into launch.command" in result.output
    text = (machines / "routes.yaml").read_text()
    assert "launch:   # by hand" in text
    launch = load(machines / "routes.yaml", environ={}).snapshot.backends["big"].launch
    assert launch is not None
    assert launch.env == {"HF_HOME": "/models", "MODEL_REVISION": COMMIT}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nobody"], 2, "no backend 'nobody': there are big, plain"),
        (["plain"], 2, "plain has no launch block"),
        (["big", "--to", "spark9"], 2, "no node 'spark9'"),
        (["big", "--to", "spark3"], 2, "write nodes.spark3.ssh"),
        (["big", "--revision", "v2"], 1, "acme/big@v2 is not told by"),
    ],
)
def test_what_cannot_be_pulled_is_said(machines: Path, arguments: list[str], code: int, told: str) -> None:
    result = pull(machines, *arguments)
    assert result.exit_code == code
    assert told in result.output


def test_a_download_that_fails_names_its_last_words(machines: Path) -> None:
    (machines / "hf.fails").touch()
    result = pull(machines, "big")
    assert result.exit_code == 1
    assert "spark1: download acme/big: hf ended with 1: no space left on device" in result.output


def test_a_node_that_does_not_answer_is_named(machines: Path) -> None:
    (machines / "spark2").rmdir()
    result = pull(machines, "big")
    assert result.exit_code == 1
    assert "spark2: ssh ops@spark2: ssh: no route to host ops@spark2" in result.output
    assert log(machines, "hf") == []


def test_a_disk_that_is_too_small_is_known_before(machines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_program, "free_bytes", lambda *_: 2**30)
    with pytest.raises(Broken, match=r"are missing, and 1\.0 GiB of disk are free"):
        node_program.STEPS["download"]({"index": index(), "root": "/srv", "needed": 2**30}, lambda *_: None)
