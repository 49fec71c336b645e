"""What the checks ask: limits, thinking, sampling, schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.config.snapshot import Backend
from gateway.health.canary_schedule import SHORT, WARM_UP
from gateway.health.checks import ALL, CHECKS, CheckReply, Profile, judge, profile_of
from gateway.health.checks.requests import BRIEF_THOUGHT, LIFE, LONG, SCHEMA, TOOLS
from tests.health.checks.test_graders import QWEN36, STREAMED, VLLM
from tests.health.checks.test_graders_flaws import PRODUCT


@pytest.mark.parametrize("check", ALL)
def test_every_check_asks_with_a_limit_and_without_chance(check: str) -> None:
    body = json.loads(json.dumps(CHECKS[check].ask(QWEN36)))
    assert 1 <= body["max_tokens"] <= 2048
    assert body["temperature"] == 0
    history = ["assistant", "tool"] if check == "thoughts_kept" else []
    assert [message["role"] for message in body["messages"]] == ["user", *history]
    assert body.get("stream", False) is (check in STREAMED)


def switches(check: str, profile: Profile) -> dict[str, Any]:
    body = CHECKS[check].ask(profile)
    return {key: body[key] for key in ("chat_template_kwargs", "think", "reasoning_effort") if key in body}


def kwargs(**switch: object) -> dict[str, Any]:
    return {"chat_template_kwargs": switch}


OWN = replace(VLLM, thinking="optional", thinking_switch="deep")
CLOUD = replace(VLLM, engine="litellm", thinking="optional")
WORDS = (
    (VLLM, "Qwen3.6-27B", kwargs(enable_thinking=True), kwargs(enable_thinking=False)),
    (VLLM, "deepseek-ai/DeepSeek-V4-Flash", kwargs(thinking=True), kwargs(thinking=False)),
    (VLLM, "Seed-OSS-36B", kwargs(thinking_budget=-1), kwargs(thinking_budget=0)),
    (OWN, "own/model", kwargs(deep=True), kwargs(deep=False)),
    (replace(VLLM, engine="ollama"), "qwen3:8b", {"think": True}, {"think": False}),
    (CLOUD, "anthropic/x", {"reasoning_effort": "medium"}, {"reasoning_effort": "none"}),
)


@pytest.mark.parametrize(("backend", "model", "on", "off"), WORDS, ids=[model for _, model, _, _ in WORDS])
def test_thinking_is_switched_in_the_backends_own_words(
    backend: Backend, model: str, on: dict[str, Any], off: dict[str, Any]
) -> None:
    profile = profile_of(backend, model, None)
    assert switches("reasoning", profile) == switches("thinking_on", profile) == on
    for check in ("plain", "arithmetic", "thinking_off", "tool_required", "json_schema"):
        assert switches(check, profile) == off, check
    assert switches("tool_auto", profile) == {}


def test_thinking_is_not_switched_on_a_model_that_never_thinks_or_has_no_switch() -> None:
    instruct = profile_of(VLLM, "Qwen3-Next-80B-A3B-Instruct", None)
    server = profile_of(replace(VLLM, engine="openai"), "qwen3.6", None)
    for check in set(ALL) - {"window", "thinking_off"}:  # that one is not asked of either
        assert switches(check, instruct) == {}, check
        assert switches(check, server) == {}, check


def test_a_model_that_always_thinks_gets_room_for_its_thoughts() -> None:
    always = profile_of(VLLM, "Qwen3-Next-80B-A3B-Thinking", 1000)
    assert {CHECKS[check].ask(always)["max_tokens"] for check in set(ALL) - {"window", "thoughts_kept"}} == {2048}


def test_a_canary_asks_for_little_without_thoughts_where_that_can_be_had() -> None:
    brief = replace(QWEN36, brief=True)
    asked = {name: CHECKS[name].ask(brief) for name in (WARM_UP, *SHORT)}
    assert {name: body["max_tokens"] for name, body in asked.items()} == {
        "life": LIFE, "arithmetic": LONG, "reasoning": BRIEF_THOUGHT, "tool_auto": LONG
    }  # fmt: skip
    thinking = {name: body["chat_template_kwargs"]["enable_thinking"] for name, body in asked.items()}
    assert thinking == {"life": False, "arithmetic": False, "reasoning": True, "tool_auto": False}
    always = replace(profile_of(VLLM, "Qwen3-Next-80B-A3B-Thinking", 1000), brief=True)
    assert {CHECKS[name].ask(always)["max_tokens"] for name in SHORT} == {BRIEF_THOUGHT}


def test_thoughts_that_a_canary_has_cut_are_no_wrong_answer() -> None:
    profile = replace(profile_of(VLLM, "Qwen3-Next-80B-A3B-Thinking", 1000), brief=True)
    body = CHECKS["arithmetic"].ask(profile)
    for text, result in (("<think>12 times 17 is ", "untested"), ("!!!!!!!!!!!!!!", "no"), ("it is 204", "yes")):
        message = {"role": "assistant", "content": text}
        cut = {"choices": [{"index": 0, "finish_reason": "length", "message": message}]}
        reply = CheckReply(200, {}, json.dumps(cut).encode())
        assert judge("arithmetic", profile, reply, body).result == result, text


def test_the_prompt_of_the_window_check_is_over_it_in_any_tokenizer() -> None:
    body = CHECKS["window"].ask(replace(QWEN36, window=1000))
    assert len(body["messages"][0]["content"].split()) == 1001
    assert body["max_tokens"] == 1


def test_clouds_keep_their_own_temperature() -> None:
    assert "temperature" not in CHECKS["plain"].ask(replace(QWEN36, cloud=True))


def test_the_small_schema_and_the_tools_are_valid_schemas() -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(PRODUCT), SCHEMA)
    for tool in TOOLS:
        jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])
