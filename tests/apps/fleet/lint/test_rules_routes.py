"""Rules over the whole file."""

from __future__ import annotations

from typing import Any

from tests.apps.fleet.lint.linting import (
    lint,
    rules,
)

ONE = {"url": "http://192.168.1.11:8001", "model": "a"}
TWO = {"url": "http://192.168.1.11:8001/v1", "model": "b"}


def test_two_models_at_one_address_are_a_warning_and_an_error_when_both_are_launched() -> None:
    assert rules(lint({"backends": {"x": ONE, "y": TWO}}))["same-url"] == "warning"
    line = {"node": "spark1", "launch": {"command": "vllm serve a --port 8001"}}
    second = {"node": "spark1", "launch": {"command": "vllm serve b --port 8001"}}
    both = {"backends": {"x": line, "y": second}}
    assert rules(lint(both))["same-url"] == "error"
    assert rules(lint({**both, "modes": {"m": ["x"], "n": ["y"]}}))["same-url"] == "note"


def test_each_backend_at_a_taken_port_is_told_one_that_is_free() -> None:
    def launch(model: str, port: int, **more: Any) -> dict[str, Any]:
        return {"node": "spark1", "launch": {"command": f"vllm serve {model} --port {port}", **more}}

    image = {"image": "vllm/vllm-openai:v0.23.0", "docker": "--gpus all --ipc=host -p 8001:8001"}
    blocks = [launch("a", 8001), launch("b", 8001), launch("c", 8001, **image), launch("d", 8003), launch("e", 8001)]
    found = lint({"backends": dict(zip("abcde", blocks, strict=True))})
    fixes = [one.fix for one in found if one.rule == "same-url"]
    assert fixes == ["--port 8002", "-p 8004:8001 in launch.docker", "--port 8005"]


def test_a_mode_whose_backends_do_not_fit_together_is_an_error_that_says_which_to_take_out() -> None:
    def launch(model: str, share: float, port: int) -> dict[str, Any]:
        command = f"vllm serve {model} --gpu-memory-utilization {share} --max-model-len 16384 --port {port}"
        return {"node": "spark1", "launch": {"command": command}}

    backends = {
        "big": launch("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", 0.9, 8001),
        "small": launch("Qwen/Qwen3-4B-Instruct-2507", 0.2, 8002),
    }
    data = {
        "nodes": {"spark1": {"address": "192.168.1.11", "memory": "119.67GiB"}},
        "modes": {"alone": ["big"], "both": ["big", "small"]},
        "backends": backends,
    }
    (found,) = (one for one in lint(data) if one.rule == "mode-conflict")
    assert (found.severity, found.path) == ("error", "modes.both")
    assert "big, small cannot run together on spark1: the small needs 23.9 GiB free" in found.message
    assert found.fix == "take small out of modes.both, or big"
    assert "mode-conflict" not in rules(lint({**data, "modes": {"one": ["big"], "two": ["small"]}}))


def test_one_model_under_two_names_is_no_mistake() -> None:
    assert "same-url" not in rules(lint({"backends": {"x": ONE, "y": {**ONE, "context": 65536}}}))


def test_several_models_of_one_ollama_are_no_mistake() -> None:
    ollama = {"engine": "ollama", "url": "http://192.168.1.11:11434", "context": 65536}
    both = {"x": {**ollama, "model": "qwen3:8b"}, "y": {**ollama, "model": "qwen3:32b"}}
    assert "same-url" not in rules(lint({"backends": both}))


def test_localhost_is_a_mistake_only_where_the_gateway_runs_in_a_container() -> None:
    file = {"backends": {"x": {"url": "http://localhost:8001"}}}
    assert "url-localhost" not in rules(lint(file))
    found = lint(file, in_container=True)
    assert [(one.rule, one.severity, one.path) for one in found] == [
        ("url-localhost", "warning", "backends.x.url"),
    ]


def test_a_window_that_agents_refuse_is_told_at_the_alias() -> None:
    backends = {"x": {"node": "spark1", "launch": {"command": "vllm serve m --max-model-len 16384"}}}
    found = lint({"backends": backends, "aliases": {"w": ["x"]}})
    assert [(one.path, one.severity) for one in found if one.rule == "agent-window"] == [("aliases.w", "warning")]


def test_a_floor_of_answers_that_fills_the_window_is_told() -> None:
    alias = {"w": {"use": ["x"], "min_max_tokens": 10000}}
    small = {"x": {"url": "http://192.168.1.11:1", "context": 12000}}
    large = {"x": {"url": "http://192.168.1.11:1", "context": 131072}}
    assert rules(lint({"backends": small, "aliases": alias}))["answer-window"] == "warning"
    assert "answer-window" not in rules(lint({"backends": large, "aliases": alias}))


def test_an_image_that_would_be_tried_on_a_text_model_is_told_until_vision_is_declared() -> None:
    sees = {"url": "http://192.168.1.12:8001", "model": "google/gemma-4-26B-A4B-it", "vision": True}
    blind = {"url": "http://192.168.1.11:11434", "engine": "ollama", "model": "qwen3:8b", "context": 65536}
    file: dict[str, Any] = {"backends": {"g": sees, "q": blind}, "aliases": {"w": ["g", "q"]}}
    assert rules(lint(file))["text-only-step"] == "note"
    file["backends"]["q"] = {**blind, "vision": False}
    assert "text-only-step" not in rules(lint(file))


def test_ollama_beside_vllm_is_told_once_per_server() -> None:
    ollama = {"engine": "ollama", "url": "http://192.168.1.11:11434", "node": "spark1", "context": 65536}
    both = {"x": {**ollama, "model": "qwen3:8b"}, "y": {**ollama, "model": "qwen3:32b"}}
    vllm = {"v": {"url": "http://192.168.1.11:8001", "node": "spark1"}}
    found = lint({"backends": {**both, **vllm}})
    assert [one.path for one in found if one.rule == "ollama-beside"] == ["backends.x"]
    assert "ollama-beside" not in rules(lint({"backends": both}))


def test_speech_beside_an_engine_over_two_machines_is_told() -> None:
    wide = {"url": "http://192.168.1.11:8000", "node": ["spark1", "spark2"]}
    ears = {"engine": "http", "url": "http://192.168.1.11:8765", "node": "spark1", "serves": ["transcriptions"]}
    assert rules(lint({"backends": {"w": wide, "ears": ears}}))["audio-beside"] == "note"
    assert "audio-beside" not in rules(lint({"backends": {"w": {**wide, "node": "spark1"}, "ears": ears}}))
