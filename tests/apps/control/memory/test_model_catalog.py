"""Rows of models and of field reports: mistakes in an operator's own are told, and own rows come first."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.apps.control.memory.model_catalog import host_path
from gateway.apps.fleet.lint.catalog import load_catalog
from gateway.launch.families import name_in_cache
from tests.apps.fleet.lint.test_catalog import SHIPPED, own
from tests.apps.fleet.lint.test_catalog_rows import mistakes


def test_the_rows_of_the_planner_have_their_mistakes_told_too(tmp_path: Path) -> None:
    text = """\
modles: {}
models:
  a: {weight: {x: 1GiB}}
  b: 5
  c: {match: x}
field:
  - {model: x, utilisation: 0.5}
  - 1
"""
    assert mistakes(tmp_path, text) == [
        "mine.yaml:1  modles: unknown section 'modles' - did you mean 'models'?",
        "mine.yaml:3  models.a.weight: unknown field 'weight' - did you mean 'weights'?",
        "mine.yaml:4  models.b: must be a mapping of fields - there are match, config, weights, quantized, measured, "
        "window, source",
        "mine.yaml:5  models.c: `match` must be a list",
        "mine.yaml:7  field.utilisation: unknown field 'utilisation' - did you mean 'utilization'?",
        "mine.yaml:8  field: must be a mapping of fields - there are model, utilization, memory, window, sequences, "
        "cache_dtype, verdict, reason, resident, overhead, source",
    ]


def test_a_number_beyond_all_numbers_is_a_mistake(tmp_path: Path) -> None:
    told = mistakes(tmp_path, "models: {m: {window: 1e999}}\n")
    assert told[0] == "mine.yaml:1  models.m.window: a number that is too large"


def test_own_models_and_reports_come_before_the_gateways(tmp_path: Path) -> None:
    report = "{model: M, utilization: 0.5, window: 1, sequences: 1, verdict: no}"
    found = load_catalog(own(tmp_path, f'models: {{M: {{match: ["qwen3-4b*"]}}}}\nfield: [{report}]\n'))
    assert [row.name for row in found.memory.models[:2]] == ["M", SHIPPED.memory.models[0].name]
    assert [one.model for one in found.memory.field[:2]] == ["m", SHIPPED.memory.field[0].model]
    assert found.families == SHIPPED.families


@pytest.mark.parametrize(
    ("model", "mounts", "path"),
    [
        (
            "/models/snapshots/b0d9",
            ("/srv/hub/models--unsloth--Qwen3.8-27B-NVFP4:/models:ro",),
            "unsloth/Qwen3.8-27B-NVFP4",
        ),
        ("/model", ("~/models/Laguna-S-2.1-NVFP4:/model",), "~/models/Laguna-S-2.1-NVFP4"),
        ("/model", ("weights:/model", "/srv/m:/models"), "/model"),
        ("Qwen/Qwen3-4B", ("/srv:/Qwen",), "Qwen/Qwen3-4B"),
    ],
)
def test_a_mounted_folder_tells_the_name(model: str, mounts: tuple[str, ...], path: str) -> None:
    assert name_in_cache(host_path(model, mounts)) == path
