"""The catalogue: its rows are true to the gateway's own tables, and an operator's file is read with clear messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.fleet.lint.catalog import SECTIONS, catalog_name, catalog_of, load_catalog, version_of
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Snapshot
from gateway.config.suggest import REASONING_PARSERS, TOOL_PARSERS
from gateway.launch.families import family_of
from gateway.launch.flags import flag_names

SHIPPED = load_catalog()


def own(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


# -- the rows ---------------------------------------------------------------------------------------------------------


def test_parsers_of_the_catalogue_are_vllms() -> None:
    for row in SHIPPED.families.values():
        assert {*(row.tool_parsers or ()), *row.reported_parsers, *row.likely_parsers} <= TOOL_PARSERS
        assert set(row.reasoning_parsers or ()) <= REASONING_PARSERS | {"none"}


@pytest.mark.parametrize(
    "model",
    [
        "RedHatAI/Qwen3.6-35B-A3B-NVFP4", "Qwen/Qwen3.5-122B-A10B", "Qwen/Qwen3-Coder-Next-FP8",
        "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", "Qwen/Qwen3-Next-80B-A3B-Thinking-FP8",
        "Qwen/Qwen3-4B-Instruct-2507", "qwen3:8b", "google/gemma-4-26B-A4B-it", "nvidia/Gemma-4-31B-IT-NVFP4",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-NVFP4",
        "deepseek-ai/DeepSeek-V4-Flash", "poolside/Laguna-XS.2",
    ],
)  # fmt: skip
def test_the_catalogue_and_the_gateways_own_table_agree_on_parsers(model: str) -> None:
    row, family = SHIPPED.family([model]), family_of(model)
    assert row is not None
    assert family is not None
    assert row.tool_parsers is not None
    assert row.tool_parsers[0] == family.tool_parser
    assert row.reasoning_parsers is not None
    if family.reasoning_parser is None:
        assert not row.reasoning_parsers
    else:
        assert family.reasoning_parser in row.reasoning_parsers


def test_flags_of_the_catalogue_are_vllms() -> None:
    for row in SHIPPED.families.values():
        assert set(row.flags) <= set(flag_names())


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("RedHatAI/Qwen3.6-35B-A3B-NVFP4", 262144), ("Qwen/Qwen3-Coder-Next-FP8", 262144), ("Qwen/Qwen3-8B", 40960),
        ("nvidia/Gemma-4-31B-IT-NVFP4", 262144), ("x/gemma-4-12B-coder", 262144),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 262144), ("deepseek-ai/DeepSeek-V4-Flash", 1048576),
    ],
)  # fmt: skip
def test_the_window_that_a_model_was_made_for_is_known(name: str, window: int) -> None:
    found = SHIPPED.memory.own_window(["nobody/knows-it", name])
    assert found is not None
    assert found[0] == window


def test_every_row_names_its_source() -> None:
    for section in SECTIONS:
        assert [name for name, row in getattr(SHIPPED, section).items() if not row.source] == []


CLAIMS = {
    "tool_parsers",
    "parser_plugin",
    "auto_calls",
    "tensor_parallel",
    "patched_file",
    "fails_with",
    "crashes_with",
}


def test_every_row_that_makes_an_error_names_the_versions_for_which_it_holds() -> None:
    for section in SECTIONS:
        for name, row in getattr(SHIPPED, section).items():
            makes = CLAIMS & row.written if section != "families" or row.written & {"tool_parsers"} else set()
            assert not makes or row.versions or getattr(row, "tool_parsers", None) == (), name
            assert row.versions == () or all(version_of(version) for version in row.versions), name


def test_a_special_row_is_completed_by_the_general_one() -> None:
    row = SHIPPED.family(["nvidia/Qwen3.6-35B-A3B-NVFP4"])
    assert row is not None
    assert (row.moe, row.mamba_block) == (True, 2128)
    assert SHIPPED.family(["m"]) is None


@pytest.mark.parametrize(
    ("image", "version", "entrypoint"),
    [
        ("nvcr.io/nvidia/vllm:26.04-py3", "0.19.0", "none"),
        ("nvcr.io/nvidia/vllm:27.01-py3", None, "none"),
        ("vllm/vllm-openai:gemma4-cu130", "0.19", "vllm serve"),
        ("vllm/vllm-openai:nightly@sha256:0", "0.23", "vllm serve"),
        ("ghcr.io/aeon-7/vllm-dflash:latest", "0.21", "own"),
    ],
)
def test_an_image_is_known_by_its_tag(image: str, version: str | None, entrypoint: str) -> None:
    row = SHIPPED.image(image)
    assert row is not None
    assert (row.vllm, row.entrypoint) == (version, entrypoint)


# -- the operator's own -----------------------------------------------------------------------------------------------


def test_own_rows_come_first_and_replace_those_of_the_same_name(tmp_path: Path) -> None:
    text = "families:\n  mine: {match: qwen3.6, tool_parsers: [hermes]}\nvariables:\n  VLLM_USE_V1: {never: true}\n"
    found = load_catalog(own(tmp_path, text))
    row = found.family(["Qwen/Qwen3.6-27B"])
    assert row is not None
    assert (row.tool_parsers, row.mamba_block) == (("hermes",), 2128)
    assert found.variables["VLLM_USE_V1"].never
    assert found.variables["VLLM_USE_V1"].no_op_from is None


def test_the_path_of_the_own_file_is_relative_to_routes_yaml(tmp_path: Path) -> None:
    own(tmp_path, "models: {mine: {}}")
    snapshot = Snapshot({}, {}, source=str(tmp_path / "routes.yaml"), own_catalog="mine.yaml")
    assert catalog_of(snapshot).memory.models[0].name == "mine"
    assert catalog_of(Snapshot({}, {})) == SHIPPED


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such catalogue"):
        load_catalog(tmp_path / "none.yaml")


@given(st.text(max_size=40))
def test_any_name_can_be_looked_up(name: str) -> None:
    SHIPPED.family([name])
    SHIPPED.image(name)
    SHIPPED.publisher(name)
    SHIPPED.draft(name)
    assert catalog_name(catalog_name(name)) == catalog_name(name)
    version_of(name)
