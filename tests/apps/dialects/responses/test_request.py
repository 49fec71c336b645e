"""A Responses body as a chat: what each part becomes, and what is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.endpoints import RESPONSES
from gateway.domain.request import parse
from gateway.errors import GatewayError
from tests.apps.dialects.anthropic.test_request_any_body import spoil
from tests.apps.dialects.parts import harmless, response_to_chat

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"x":1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
TOOL = {"type": "function", "name": "now", "description": "The time.", "parameters": {"type": "object"}, "strict": None}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0K", "detail": "auto"}
FUNCTION = {
    "type": "function",
    "function": {"name": "now", "description": "The time.", "parameters": TOOL["parameters"]},
}


def chat(input_: Any = "hi", **fields: Any) -> dict[str, Any]:
    """The chat body, which the request path accepts."""
    body, _ = response_to_chat(json.dumps({"model": "main", "input": input_, **fields}).encode())
    assert parse(RESPONSES, body).model == "main"
    became: dict[str, Any] = json.loads(body)
    return became


def messages(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat(list(items), **fields)["messages"]
    return found


def said(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "text": text}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{**said("output_text", text), "annotations": []}]}


ALLOWED = {"type": "function", "name": "now"}
FORM = {"type": "json_schema", "name": "sum", "schema": {"type": "object"}, "strict": True}
BECOMES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
    ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
    ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    (
        {"text": {"format": FORM}},
        {"response_format": {"type": "json_schema", "json_schema": {k: v for k, v in FORM.items() if k != "type"}}},
    ),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        {"stream": True, "stream_options": {"include_usage": True}},
    ),
    ({"stream": "true"}, {"stream": "true", "stream_options": {"include_usage": True}}),
    ({"tools": [TOOL]}, {"tools": [FUNCTION]}),
    ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "now"}, "parallel_tool_calls": False},
        {
            "tools": [FUNCTION],
            "tool_choice": {"type": "function", "function": {"name": "now"}},
            "parallel_tool_calls": False,
        },
    ),
    (
        {
            "tools": [TOOL, {**TOOL, "name": "other"}],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "now"}],
            },
        },
        {"tools": [FUNCTION], "tool_choice": "required"},
    ),
    ({"temperature": 0.5, "top_p": 0.9, "user": "u", "prompt_cache_key": "k"},) * 2,
    ({"store": True, "metadata": {"a": "b"}, "truncation": "auto", "service_tier": "flex", "background": False}, {}),
    ({"include": ["reasoning.encrypted_content"], "previous_response_id": None, "conversation": None}, {}),
]


@pytest.mark.parametrize(("given_", "becomes"), BECOMES)
def test_a_field_becomes_what_a_chat_has_for_it(given_: dict[str, Any], becomes: dict[str, Any]) -> None:
    body = chat(**given_)
    assert body.pop("messages") == [{"role": "user", "content": "hi"}]
    assert body == {"model": "main", **becomes}


FOREIGN = ("web_search", "file_search", "code_interpreter", "computer_use_preview", "mcp", "local_shell", "new_tool")
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    *(("input_unsupported", "tools[0]", {"tools": [{"type": kind}], "tool_choice": "required"}) for kind in FOREIGN),
    ("input_unsupported", "tool_choice", {"tools": [TOOL], "tool_choice": {"type": "web_search_preview"}}),
    ("input_unsupported", "previous_response_id", {"previous_response_id": "resp_1"}),
    ("input_unsupported", "conversation", {"conversation": {"id": "conv_1"}}),
    ("input_unsupported", "prompt", {"prompt": {"id": "pmpt_1"}}),
    ("input_unsupported", "background", {"background": True}),
    ("input_unsupported", "include", {"include": ["message.output_text.logprobs"]}),
    ("input_unsupported", "input[0]", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("invalid_request_body", "tools[0].name", {"tools": [{"type": "custom"}]}),
    ("invalid_request_body", "tools[0].tools", {"tools": [{"type": "namespace", "name": "a"}]}),
    ("input_unsupported", "input[0].content[0]", {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}),
    (
        "input_unsupported",
        "input[0].content[0].file_id",
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
    ),
    ("input_unsupported", "input[0].content[0]", {"input": [{"role": "assistant", "content": [PICTURE]}]}),
    ("invalid_request_body", "input", {"input": None}),
    ("invalid_request_body", "input[0]", {"input": ["hi"]}),
    ("invalid_request_body", "input[0].role", {"input": [{"type": "message", "role": "tool", "content": "a"}]}),
    ("invalid_request_body", "input[0].call_id", {"input": [{**RESULT, "call_id": 1}]}),
    ("invalid_request_body", "input[0].output", {"input": [{"type": "function_call_output", "call_id": "a"}]}),
    ("invalid_request_body", "instructions", {"instructions": ["a"]}),
    ("invalid_request_body", "tools[0].name", {"tools": [FUNCTION]}),
    ("invalid_request_body", "tool_choice", {"tool_choice": "now"}),
    ("invalid_request_body", "reasoning", {"reasoning": "low"}),
    ("invalid_request_body", "reasoning.effort", {"reasoning": {"effort": 3}}),
    ("invalid_request_body", "text.format.type", {"text": {"format": {"type": "grammar"}}}),
    ("invalid_request_body", "text.format.schema", {"text": {"format": {"type": "json_schema", "name": "a"}}}),
]


@pytest.mark.parametrize(("code", "param", "fields"), REFUSED)
def test_what_cannot_be_translated_is_refused_by_its_name(code: str, param: str, fields: dict[str, Any]) -> None:
    fields = {"input": "hi", **fields}
    with pytest.raises(GatewayError) as caught:
        chat(fields.pop("input"), **fields)
    error = caught.value
    assert (error.code, error.param, error.status) == (code, param, 400)
    assert error.message.startswith(f"`{param}` ")
    assert harmless(error)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A body of parts that are right, in which some are then dropped or something else altogether."""
    items = [USER, assistant("a"), CALL, RESULT, {"type": "reasoning", "summary": [said("summary_text", "s")]}]
    items.append({"role": "user", "content": [PICTURE, said("input_text", "b")]})
    body: dict[str, Any] = {"model": "m", "input": draw(st.lists(st.sampled_from(items), max_size=6))}
    for fields, _ in draw(st.lists(st.sampled_from(BECOMES), max_size=3)):
        body |= fields
    copied: dict[str, Any] = json.loads(json.dumps(body))
    for _ in range(draw(st.integers(0, 3))):
        spoil(draw, copied)
    return copied


@given(bodies())
def test_any_body_becomes_a_chat_or_is_refused(body: dict[str, Any]) -> None:
    with contextlib.suppress(GatewayError):
        became, asked = response_to_chat(json.dumps(body).encode())
        assert isinstance(json.loads(became)["messages"], list)
        assert json.loads(asked.echo)["store"] is False


@pytest.mark.parametrize("field", ["input", "tools", "metadata", "text", "unknown"])
def test_a_body_that_is_nested_too_deeply_is_refused(field: str) -> None:
    deep = b'{"model":"m","input":"hi","%b":%b1%b}' % (field.encode(), b"[" * 1_000_000, b"]" * 1_000_000)
    with pytest.raises(GatewayError) as caught:
        response_to_chat(deep)
    assert caught.value.code == "invalid_request_body"
