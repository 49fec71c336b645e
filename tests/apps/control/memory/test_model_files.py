"""Where a model's files are looked for, and what odd ones give."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from gateway.apps.control.memory.arithmetic import GIB
from gateway.apps.control.memory.geometry import Geometry
from gateway.apps.control.memory.model_files import ModelFiles, read_models
from gateway.config.snapshot import Backend, Launch
from gateway.launch.command import ServeCommand
from tests.apps.control.memory.sparks import fleet

CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}


def model_in(folder: Path, weights: int = 0, config: str = json.dumps(CONFIG)) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    if weights:
        (folder / "model.safetensors").write_bytes(b"x" * weights)
    return folder


def found(
    roots: Iterable[Path] = (), model: str = "acme/odd-7b", volumes: tuple[str, ...] = (), image: str | None = "vllm"
) -> ModelFiles | None:
    launch = Launch(image=image, volumes=volumes, parsed=ServeCommand(model=model))
    return read_models(fleet(Backend("odd", nodes=("spark1",), launch=launch)), tuple(roots)).get("odd")


@pytest.mark.parametrize(
    "place",
    [
        "acme/odd-7b",
        "odd-7b",
        "hub/models--acme--odd-7b/snapshots/0123",
        "models--acme--odd-7b/snapshots/0123",
    ],
)
def test_a_tree_and_a_cache_of_hugging_face_are_found(tmp_path: Path, place: str) -> None:
    files = found([model_in(tmp_path / place).parents[len(Path(place).parts) - 1]])
    assert files is not None
    assert isinstance(files.geometry, Geometry)
    assert files.geometry.attention[0].layers == 2


def test_the_host_side_of_a_volume_is_a_cache(tmp_path: Path) -> None:
    model_in(tmp_path / "hub/models--acme--odd-7b/snapshots/0123")
    assert found(volumes=(f"{tmp_path}:/cache/huggingface:ro",)) is not None


def test_a_path_in_the_container_is_looked_for_on_the_host(tmp_path: Path) -> None:
    model_in(tmp_path / "DeepSeek-V4-Flash")
    assert found(volumes=(f"{tmp_path}:/models",), model="/models/DeepSeek-V4-Flash") is not None
    assert found(volumes=(f"{tmp_path}/DeepSeek-V4-Flash:/model:ro",), model="/model") is not None
    assert found([tmp_path], model="/models/DeepSeek-V4-Flash") is not None
    assert found(volumes=(f"{tmp_path}:/other",), model="/models/DeepSeek-V4-Flash") is None


def test_a_path_without_a_container_is_itself(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "odd")
    assert found(model=str(folder), image=None) is not None
    assert found(model=str(folder)) is None


def test_what_the_caller_names_comes_before_the_volumes(tmp_path: Path) -> None:
    model_in(tmp_path / "named/acme/odd-7b", weights=10)
    model_in(tmp_path / "mounted/acme/odd-7b", weights=20)
    files = found([tmp_path / "named"], volumes=(f"{tmp_path}/mounted:/models",))
    assert files is not None
    assert files.weights == 10 / GIB


def test_the_index_tells_the_weights_before_the_files_do(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "acme/odd-7b", weights=10)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 3 * GIB}}))
    files = found([tmp_path])
    assert files is not None
    assert files.weights == 3.0


@pytest.mark.parametrize(
    "index", ["[]", "{", '{"metadata": {"total_size": "big"}}', '{"metadata": {"total_size": -1}}']
)
def test_an_odd_index_leaves_the_sizes_of_the_files(tmp_path: Path, index: str) -> None:
    folder = model_in(tmp_path / "acme/odd-7b", weights=10)
    (folder / "model.safetensors.index.json").write_text(index)
    files = found([tmp_path])
    assert files is not None
    assert files.weights == 10 / GIB


def test_a_model_that_is_still_being_fetched_has_no_size(tmp_path: Path) -> None:
    (model_in(tmp_path / "acme/odd-7b") / "model.safetensors").symlink_to(tmp_path / "missing")
    files = found([tmp_path])
    assert files is not None
    assert files.weights is None


def test_a_volume_of_ones_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model_in(tmp_path / "vllm/hub/models--acme--odd-7b/snapshots/0123")
    assert found(volumes=("~/vllm:/models",)) is not None


@pytest.mark.parametrize(
    "config",
    [
        "",
        "[",
        "[" * 100_000,
        '{"a":' * 100_000,
        "null",
        '{"num_hidden_layers": 1e999}',
        "{}",
        " " * 2_000_000,
        "\udcff",
    ],
    ids=["empty", "torn", "deep list", "deep object", "null", "infinite", "bare", "huge", "not text"],
)
def test_an_odd_config_is_said_to_be_unknown(tmp_path: Path, config: str) -> None:
    folder = tmp_path / "acme/odd-7b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(config.encode(errors="surrogateescape"))
    files = found([tmp_path])
    assert files is not None
    assert isinstance(files.geometry, str)
    assert files.weights is None


@pytest.mark.parametrize("model", ["../../etc", "acme/..", "a b/c", "acme/odd\x00", "", "${MODEL}", "~/models"])
def test_a_name_that_is_no_path_is_not_looked_for(tmp_path: Path, model: str) -> None:
    assert found([tmp_path], model=model, volumes=(f"{tmp_path}:/models",)) is None


@pytest.mark.parametrize("volume", ["named:/models", "${HOME}/models:/models", "/only", ":/models", ""])
def test_a_volume_that_is_no_folder_here_is_left_out(volume: str) -> None:
    assert found(volumes=(volume,), model="/models/odd") is None
