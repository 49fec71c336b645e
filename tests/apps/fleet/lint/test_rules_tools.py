"""Rules about tool calls and thoughts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.apps.control.memory.model_files import ModelFiles
from gateway.apps.fleet.lint.catalog import catalog_of
from gateway.apps.fleet.lint.findings import findings
from gateway.config.load import load_text
from tests.apps.fleet.lint.linting import (
    check_mistake,
    field,
    lint,
    names_of,
    rules,
)


@pytest.mark.parametrize("name", names_of("parsers"))
def test_what_went_wrong_gives_its_finding(name: str) -> None:
    check_mistake(name)


@pytest.mark.parametrize(
    ("architecture", "parser", "told"),
    [
        ("Qwen3_5MoeForConditionalGeneration", "hermes", True),
        ("Qwen3_5MoeForConditionalGeneration", "qwen3_xml", False),
        ("GptOssForCausalLM", "hermes", True),
        ("NeverHeardOfForCausalLM", "hermes", False),
    ],
)
def test_a_parser_is_held_against_the_class_of_a_model_whose_name_says_nothing(
    architecture: str, parser: str, told: bool, tmp_path: Path
) -> None:
    command = f"vllm serve acme/own --enable-auto-tool-choice --tool-call-parser {parser}"
    loaded = load_text(
        json.dumps({"backends": {"b": {"url": "http://h:1", "launch": {"command": command}}}}), environ={}
    )
    files = {"b": ModelFiles(tmp_path, "unknown", None, architecture)}
    found = rules(findings(loaded.snapshot, catalog_of(loaded.snapshot), files=files))
    assert found.get("parser-family") == ("warning" if told else None)
    assert ("model-unknown" in found) is (architecture == "NeverHeardOfForCausalLM")


def test_the_parsers_of_the_recipes_of_vllm_are_the_right_ones() -> None:
    backends: dict[str, object] = {}
    for parsers, models in field("parsers").items():
        tool, reasoning = parsers.split()
        flags = "" if tool == "-" else f" --enable-auto-tool-choice --tool-call-parser {tool}"
        flags += "" if reasoning == "-" else f" --reasoning-parser {reasoning}"
        for model in models:
            launch = {"image": "vllm/vllm-openai:v0.33.0", "command": f"{model} --port {9000 + len(backends)}{flags}"}
            backends[f"b{len(backends)}"] = {"node": "spark1", "run": "on_demand", "launch": launch}
    found = [one for one in lint({"backends": backends}) if one.rule in ("parser-family", "reasoning-parser")]
    assert [f"{one.rule}: {one.message}" for one in found if "no reasoning parser" not in one.message] == []
