"""Recipes: placeholders, ranks, and whatever else stands in them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from gateway.apps.fleet.preflight.host import CONTAINER_HOME
from gateway.apps.importing.sparkrun import is_recipe
from tests.apps.importing.support_starts import started
from tests.apps.importing.test_shell_statements import VALUES, is_loaded

KEYS = ["container", "runtime", "defaults", "env", "command", "mods", "build_args", "cluster_only", "name", "odd"]


def test_defaults_may_stand_in_defaults() -> None:
    text = """
        recipe_version: "2"
        model: org/Model
        container: vllm-node
        solo_only: true
        defaults: {port: 8001, tensor_parallel: 2, name: "{model}-{port}"}
        command: vllm serve {model} --port {port} --served-model-name {name} -tp {tensor_parallel}
    """
    (backend,) = started("sparkrun", text, "model.yaml").snapshot.backends.values()
    assert (backend.model, backend.url, backend.nodes) == ("org/Model-8001", "http://spark1:8001", ("spark1",))


def test_the_volumes_of_a_recipe_stand_before_the_cache_that_its_runner_mounts() -> None:
    text = """
        recipe_version: "2"
        model: /model
        container: vllm-node
        volumes: ["~/models/big:/model:ro"]
        command: vllm serve {model}
    """
    (backend,) = started("sparkrun", text, "model.yaml").snapshot.backends.values()
    assert backend.launch is not None
    shared = f"~/.cache/huggingface:{CONTAINER_HOME}/.cache/huggingface"
    assert backend.launch.volumes == ("~/models/big:/model:ro", shared)


@pytest.mark.parametrize(
    ("data", "known"),
    [
        ({"recipe_version": "1", "model": "m"}, True),
        ({"model": "m", "container": "c", "command": "x"}, True),
        ({"model": "m", "command": "x"}, False),
        ({"recipe_version": "1"}, False),
    ],
)
def test_which_keys_make_a_recipe(data: dict[str, Any], known: bool) -> None:
    assert is_recipe(data) is known


def test_placeholders_that_double_stay_small() -> None:
    text = "recipe_version: 1\nmodel: m\ncontainer: c\ndefaults: {a: '" + "{a}" * 2000 + "'}\ncommand: vllm serve {a}\n"
    is_loaded("sparkrun", text)


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_whatever_stands_in_a_recipe(recipe: dict[str, Any]) -> None:
    out = io.StringIO()
    start = {"recipe_version": "1", "model": "m", "container": "vllm/x:1", "command": "vllm serve {model} {port}"}
    YAML().dump({**start, **recipe}, out)
    is_loaded("sparkrun", out.getvalue())
