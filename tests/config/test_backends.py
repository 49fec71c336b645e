"""Mistakes and oddities of backends: engines, windows, parsers, and whether they are inside the LAN."""

from __future__ import annotations

import pytest

from gateway.config.load import load_text
from tests.config.test_validate import mistakes, oddities


@pytest.mark.parametrize("engine", ["openai", "vllm", "ollama"])
def test_a_public_host_must_say_whether_it_is_cloud(engine: str) -> None:
    backend = f'engine: {engine}, url: "https://api.example.com", model: m, context: 70000'
    assert "does a prompt leave the LAN?" in mistakes(f"backends:\n  a: {{{backend}}}\n")[0]
    for said in ("true", "false"):
        snapshot = load_text(f"backends:\n  a: {{{backend}, cloud: {said}}}\n", environ={}).snapshot
        assert snapshot.backends["a"].cloud is (said == "true")


@pytest.mark.parametrize(("engine", "wrong"), [("ollama", True), ("litellm", True), ("openai", False)])
def test_engines_with_an_api_of_their_own_are_asked_for_chats_alone(engine: str, wrong: bool) -> None:
    backend = f'engine: {engine}, url: "http://192.168.1.11:1", model: a/m, cloud: false, responses: own'
    found = mistakes(f"backends:\n  a: {{{backend}}}\n")
    assert any("never asked at /v1/responses" in line for line in found) is wrong


def test_an_unknown_parser_is_odd() -> None:
    text = 'backends:\n  a: {url: "http://x:1", tool_parser: qwen3, reasoning_parser: qwen_3}\n'
    assert oddities(text) == [
        "routes.yaml:2  backends.a.tool_parser: 'qwen3' is no parser that vLLM ships - that is a reasoning_parser",
        "routes.yaml:2  backends.a.reasoning_parser: 'qwen_3' is no parser that vLLM ships - did you mean 'qwen3'?",
    ]


def test_a_window_too_small_for_hermes_is_odd() -> None:
    small = 'backends:\n  a: {url: "http://x:1", context: 63999}\n  b: {url: "http://x:2", context: 64000}\n'
    assert oddities(small + "aliases: {w: [a], v: [b], u: [[b, a]]}\n") == [
        "routes.yaml:4  aliases.w: a window of 63,999 tokens: Hermes will not start below 64,000 "
        "- fine for other clients",
        "routes.yaml:4  aliases.u: a window of 63,999 tokens: Hermes will not start below 64,000 "
        "- fine for other clients",
    ]


def test_an_ollama_window_that_is_not_declared_is_assumed_and_said() -> None:
    loaded = load_text('backends: {o: {engine: ollama, url: "http://x:1", model: m}}\n', environ={})
    assert loaded.snapshot.backends["o"].context == 32768
    assert any("32768 tokens are asked of Ollama" in w.message for w in loaded.warnings)


@pytest.mark.parametrize("keys", ["engine: mlx", "engine: openai, server: transformers"])
def test_a_server_that_computes_beyond_its_window_needs_a_declared_one(keys: str) -> None:
    text = 'backends: {{a: {{{}, url: "http://x:1", model: m}}}}\n'
    silent, declared = (load_text(text.format(k), environ={}) for k in (keys, keys + ", context: 4096"))
    assert any("computes on beyond its model's window" in w.message for w in silent.warnings)
    assert not any("computes on beyond" in w.message for w in declared.warnings)
    assert silent.snapshot.backends["a"].context is None


@pytest.mark.parametrize(
    ("keys", "slots", "assumed"),
    [
        ("slots: auto", 8, True),
        ("slots: 4", 4, False),
        ("slots: none", None, False),
        ("slots: auto, engine: ollama, model: m, context: 4096", 1, True),
        ("slots: auto, launch: {command: 'vllm serve m --port 8001 --max-num-seqs 16'}", 16, True),
        ("launch: {command: 'vllm serve m --port 8001 --max-num-seqs 16'}", 16, False),
        ("launch: {command: 'vllm serve m --port 8001'}", 8, True),
    ],
)
def test_slots_begin_at_what_is_declared_or_are_assumed(keys: str, slots: int | None, assumed: bool) -> None:
    backend = load_text(f"backends: {{a: {{url: 'http://10.0.0.1:8001', {keys}}}}}").snapshot.backends["a"]
    assert (backend.slots, backend.slots_assumed) == (slots, assumed)
