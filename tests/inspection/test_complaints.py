# ruff: noqa: E501 (messages of servers)
"""Refusals that name what the gateway could change, in the words of servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.domain.forms import STRICT, USUAL_FORMS, Forms
from gateway.inspection.complaints import read_complaint

SENT: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5,
    "reasoning_effort": "high",
    "prompt_cache_key": "k",
    "store": False,
    "thinking": {"type": "enabled"},
    "temperature": 0.2,
    "user": "u",
}
HISTORY = '[{"role":"assistant","reasoning_content":"x","tool_calls":[{"id":"a"}]},{"role":"tool","tool_call_id":"a"}]'


def read(message: str, param: str | None = None, prompt: str = HISTORY, forms: Forms = USUAL_FORMS) -> tuple[str, ...]:
    sent = {name: Raw(json.dumps(value).encode()) for name, value in SENT.items()}
    return read_complaint(message, param, sent, prompt, forms)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("Unexpected reasoning effort high. Supported types are xhigh (default), medium, and low.", "efforts=xhigh,medium,low"),
        ("Invalid value: 'high'. Supported values of reasoning_effort are: 'low' and 'medium'.", "efforts=low,medium"),
        ("reasoning_effort is not supported by this model", "efforts="),
        ("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", "limit=max_completion_tokens"),
        ("Validation: Unsupported parameter(s): `prompt_cache_key`", "refused=prompt_cache_key"),
        ("Unrecognized request arguments supplied: foo, store", "refused=store"),
        ("property 'thinking' is unsupported", "refused=thinking"),
        ('[{"type":"extra_forbidden","loc":["body","user"],"msg":"Extra inputs are not permitted"}]', "refused=user"),
        ("Extra inputs are not permitted, field: 'store'", "refused=store"),
        ("json: unknown field \"store\"", "refused=store"),
        ("'temperature' does not support 0.2 with this model. Only the default (1) value is supported.", "refused=temperature"),
        ("Tool call id was a but must be a-z, A-Z, 0-9, with a length of 9.", "ids=mistral"),
        ("messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'", "ids=safe"),
        ("Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40", "ids=short"),
        ("Missing `reasoning_content` field in the assistant message at message index 1.", "thoughts=reasoning_content"),
        ("messages.1.assistant.reasoning_content: Extra inputs are not permitted", "thoughts=none"),
    ],
)  # fmt: skip
def test_a_refusal_asks_for_another_form(message: str, found: str) -> None:
    assert read(message) == (found,)


@pytest.mark.parametrize("name", ["annotations", "cache_control", "reasoning_details"])
def test_a_field_of_a_message_is_refused(name: str) -> None:
    prompt = f'[{{"role":"assistant","{name}":[],"content":"a"}}]'
    assert read(f"messages.1.{name}: Extra inputs are not permitted", prompt=prompt) == (f"extras={name}",)
    assert read(f"messages.1.{name}: Extra inputs are not permitted", prompt="[]") == ()


def test_several_fields_are_named_at_once() -> None:
    assert set(read("Unsupported parameter(s): `prompt_cache_key`, `store`")) == {
        "refused=prompt_cache_key",
        "refused=store",
    }


def test_a_field_is_named_beside_the_message() -> None:
    assert read("This field is not supported.", "user") == ("refused=user",)


@pytest.mark.parametrize(
    ("message", "prompt", "forms", "found"),
    [
        ("System role not supported", '[{"role":"system"}]', USUAL_FORMS, "system=false"),
        ("System message must be at the beginning.", '[{"role":"system"}]', USUAL_FORMS, "turns=true"),
        ("Conversation roles must alternate user/assistant/user/assistant/...", "[]", USUAL_FORMS, "turns=true"),
        ("Unexpected message role.", '[{"role":"developer"}]', Forms(developer=True), "developer=false"),
        ("Only text content is supported in messages with role 'tool'.", '[{"tool_call_id":"a","content":[{"type":"x"}]}]', USUAL_FORMS, "text_results=true"),
    ],
)  # fmt: skip
def test_messages_are_refused_by_their_form(message: str, prompt: str, forms: Forms, found: str) -> None:
    assert read(message, prompt=prompt, forms=forms) == (found,)


@pytest.mark.parametrize(
    "message",
    [
        "temperature must be at most 2, got 7",
        "max_tokens must be at least 1",
        "I could not find the user that you named, nor the store.",
        "Unsupported parameter(s): `response_format`",
        "Unsupported parameter(s): `tools`",
        "Invalid image.",
        "",
    ],
)
def test_what_the_gateway_may_not_change_is_the_clients(message: str) -> None:
    assert read(message) == ()


def test_an_effort_that_was_mapped_already_is_left_out() -> None:
    assert read("Unexpected reasoning effort high.", forms=Forms(efforts=("low", "high"))) == ("efforts=",)


@pytest.mark.parametrize(
    "message",
    [
        "1 validation error:\n  {'type': 'bool_type', 'loc': 'body.add_generation_prompt', 'msg': 'Input should be a valid boolean', 'input': 'None'}",
        "7 validation errors for ValidatorIterator\n0.type\n  Input should be 'text' [type=literal_error, input_value='output_text']",
        "Missing 'type' field in multimodal part. (parameter=type)",
        "chat completions only support assistant tool_calls of type 'function'. (parameter=tool_calls)",
        "sequence item 1: expected str instance, int found",
        "`top_logprobs` must be an integer. (parameter=top_logprobs, value=2)",
        "duplicate tool name `get_weather`",
        "Only function tool calls are supported.",
        'Failed to deserialize the JSON body into the target type: logit_bias.5: invalid type: string "1", expected f32',
    ],
)
def test_a_value_of_another_type_is_written_as_the_server_reads_it(message: str) -> None:
    assert read(message) == (STRICT,)
    assert read(message, forms=Forms(strict=True)) == ()


def test_a_preference_of_another_type_is_left_out_and_not_rewritten() -> None:
    message = "[{'type': 'extra_forbidden', 'loc': ['body', 'user'], 'msg': 'Extra inputs are not permitted'}] 1 validation error"
    assert read(message, "user") == ("refused=user",)
