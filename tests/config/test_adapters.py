"""Backends that are further models of another one's engine (`on`)."""

from __future__ import annotations

import pytest

from gateway.config.load import load_text
from gateway.config.modes import in_mode
from tests.config.test_validate import mistakes

HOST = """
defaults: {queue: {length: 7}}
nodes: {spark1: {memory: 119GiB}}
backends:
  base:
    url: http://192.168.1.11:8001
    node: spark1
    model: org/base
    context: 65536
    slots: 4
    tool_parser: hermes
    run: on_demand
    start: start-base
    profiles: {}
"""


def test_what_belongs_to_the_engine_is_as_at_its_host() -> None:
    text = HOST + "  lora: {on: base, model: my-lora, context: 8192, tool_parser: none}\n"
    snapshot = load_text(text, environ={}).snapshot
    base, lora = snapshot.backends.values()
    assert (lora.on, lora.model, lora.context, lora.tool_parser) == ("base", "my-lora", 8192, "none")
    same = ("engine", "url", "cloud", "slots", "slots_assumed", "run", "timeouts", "health", "queue", "api_key")
    assert all(getattr(lora, key) == getattr(base, key) for key in same)
    assert (lora.start, lora.launch, lora.nodes) == (None, None, ())  # started, and counted, once
    assert lora.identity != base.identity
    assert list(snapshot.engines) == ["base"]
    assert "lora" in snapshot.aliases


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        ("{on: bas, model: x}", "backends.lora.on: 'bas' does not exist - did you mean 'base'?"),
        ("{on: lora, model: x}", "backends.lora.on: 'lora' is itself on another one - there are base"),
        ("{on: base}", "backends.lora: 'model' is missing"),
        ("{on: base, model: x, slots: 2}", "backends.lora.slots: belongs to the engine of 'base'"),
        ("{on: base, model: x, url: 'http://192.168.1.11:1'}", "backends.lora.url: belongs to the engine of 'base'"),
        ("{on: base, model: x, launch: {command: vllm serve x}}", "backends.lora.launch: belongs to the engine"),
        ("{base_model: base, model: x}", "backends.lora.base_model: unknown key 'base_model' - did you mean 'on'?"),
    ],
)
def test_mistakes(adapter: str, told: str) -> None:
    assert any(told in line for line in mistakes(f"{HOST}  lora: {adapter}\n")), mistakes(f"{HOST}  lora: {adapter}\n")


def test_an_engine_with_one_model_has_no_others() -> None:
    text = 'backends:\n  o: {engine: ollama, url: "http://192.168.1.11:11434", model: a}\n  l: {on: o, model: b}\n'
    assert "engine ollama has no further models in one server" in mistakes(text)[0]


def test_an_alias_of_a_lost_adapter_is_no_second_mistake() -> None:
    assert len(mistakes(f"{HOST}  lora: {{on: bas, model: x}}\naliases: {{a: [lora]}}\n")) == 1


def test_an_adapter_is_in_the_modes_of_its_host() -> None:
    text = HOST + "  lora: {on: base, model: x}\n  b: {url: 'http://192.168.1.12:1'}\nmodes: {one: [base], two: [b]}\n"
    snapshot = load_text(text, environ={}).snapshot
    for mode, parked in (("one", False), ("two", True)):
        lora = in_mode(snapshot, mode).backends["lora"]
        assert (lora.parked is not None, lora.in_mode) == (parked, not parked)
    assert "'lora' is a model of 'base', and runs with it" in mistakes(text.replace("[base]", "[base, lora]"))[0]
