"""The documentation, the shipped file and the schema say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from gateway.config.load import load, load_text
from gateway.config.schema import all_keys, json_schema
from gateway.config.suggest import EXPLAINED, FOREIGN

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "routes.md").read_text()
SHIPPED = (ROOT / "routes.yaml").read_text()
ENVIRON = {name: f"value-of-{name}" for name in re.findall(r"\$\{(\w+)\}", DOC + SHIPPED)}


def uncommented(text: str) -> str:
    """The shipped file with its settings that are commented out (`#` and no single space) in force."""
    return re.sub(r"^#(?=\S|  )", "", text, flags=re.M)


def data_of(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("block", re.findall(r"```yaml\n# complete\n(.*?)```", DOC, re.S))
def test_every_complete_example_loads(block: str) -> None:
    assert load_text(block, "routes.yaml", ENVIRON).snapshot.aliases


def test_the_shipped_file_loads_on_a_fresh_machine() -> None:
    loaded = load(ROOT / "routes.yaml", {})
    always = {"qwen36", "gemma4", "qwen8b"}
    for alias in loaded.snapshot.aliases.values():
        members = {name for step in alias.steps for name in step}
        engines = {loaded.snapshot.backends[name].engine for name in members}
        assert not loaded.snapshot.leaves_lan(alias)
        if alias.ask_all:  # of judges, which run in a mode of their own
            assert members <= set(loaded.snapshot.modes["judges"].backends)
            continue
        assert alias.implicit or "http" in engines or members & always, alias.name
    assert {"spark-qwen36", "spark-gemma4", "spark-ds4", "spark8b", "writer", "reviewer", "sources"} <= set(
        loaded.snapshot.aliases
    )


def test_the_settings_that_are_commented_out_are_valid_too() -> None:
    text = uncommented(SHIPPED)
    assert len(data_of(text)) > len(data_of(SHIPPED))
    snapshot = load_text(text, "routes.yaml", ENVIRON).snapshot
    assert snapshot.leaves_lan(snapshot.aliases["reviewer"]) == ("fireworks",)
    assert snapshot.clients["ops"].admin
    assert snapshot.aliases["judges"].ask_all == ("qwen32", "qwen235")
    assert snapshot.alerts.telegram_chat == "12345"
    for name, backend in load(ROOT / "routes.yaml", {}).snapshot.backends.items():
        assert snapshot.backends[name] == backend  # the commented `defaults` are the defaults


def test_the_schema_is_current() -> None:
    assert json.loads((ROOT / "routes.schema.json").read_text()) == json_schema(), "run `make schema`"


@pytest.mark.parametrize(
    "text", [SHIPPED, uncommented(SHIPPED), *re.findall(r"```yaml\n# complete\n(.*?)```", DOC, re.S)]
)
def test_the_schema_accepts_what_the_gateway_accepts(text: str) -> None:
    jsonschema.validate(data_of(text), json_schema())


@pytest.mark.parametrize(
    "text",
    [
        "backends: {a: {apibase: x}}",
        "backends: {a: {url: x, slots: many}}",
        "backends: {a: {url: x, timeouts: {idle: 5}}}",
        "backends: {a: {url: x, timeouts: {idle: 5sec}}}",
        "backends: {a: {url: x, engine: vlm}}",
        "backends: {a: {url: x, cloud: 1}}",
        "backends: {a: {url: }}",
        "backends: {a: {url: x}}\naliases: {w: []}",
        "backends: {a: {url: x}}\naliases: {w: {thinking: true, use: [a]}}",
        "aliases: {w: [a]}",
    ],
)
def test_the_schema_refuses_what_the_gateway_refuses(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data_of(text), json_schema())


def test_words_of_other_programs_lead_to_keys_that_exist() -> None:
    keys = set(all_keys())
    assert {target for target in FOREIGN.values() if target not in keys} == set()
    assert not {word for word in (*FOREIGN, *EXPLAINED) if word in keys}
