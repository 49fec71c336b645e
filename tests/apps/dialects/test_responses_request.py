"""A Responses body as a chat: what each part becomes, and what is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import RESPONSES, parse
from gateway.errors import GatewayError
from tests.apps.dialects.parts import harmless, response_to_chat
from tests.apps.dialects.test_any_body import spoil

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"x":1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
TOOL = {"type": "function", "name": "now", "description": "The time.", "parameters": {"type": "object"}, "strict": None}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0K", "detail": "auto"}
SEEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}
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


def test_a_string_is_a_message_of_the_user_behind_the_instructions() -> None:
    body = chat("hello", instructions="Be short.")
    assert body["messages"] == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hello"}]


def test_system_messages_at_the_beginning_are_one_and_later_ones_keep_their_place() -> None:
    first, later = {"role": "developer", "content": "a"}, {"role": "system", "content": [said("input_text", "b")]}
    found = messages(first, USER, later, instructions="i")
    assert found[0] == {"role": "system", "content": "i\n\na"}
    assert [part["text"] for part in found[1]["content"]] == ["hi", "<system-reminder>\nb\n</system-reminder>"]


def test_a_turn_of_the_assistant_is_one_message_with_its_thoughts_and_calls() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [said("reasoning_text", "hm")]}
    second = {**CALL, "call_id": "c2"}
    found = messages(USER, thought, assistant("Wait."), CALL, second, RESULT, {**RESULT, "call_id": "c2"}, USER)
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool", "user"]
    turn = found[1]
    assert (turn["content"], turn["reasoning_content"]) == ("Wait.", "hm")
    assert [call["id"] for call in turn["tool_calls"]] == ["c1", "c2"]
    assert turn["tool_calls"][0]["function"] == {"name": "now", "arguments": '{"x":1}'}
    assert found[2] == {"role": "tool", "tool_call_id": "c1", "content": "noon"}


@pytest.mark.parametrize(
    ("item", "thoughts"),
    [
        ({"content": [said("reasoning_text", "all")], "encrypted_content": "thoughts:b", "summary": []}, "all"),
        ({"encrypted_content": "thoughts:kept", "summary": [said("summary_text", "s")]}, "kept"),
        ({"encrypted_content": "gAAAA", "summary": [said("summary_text", "s")]}, "s"),
        ({"encrypted_content": "gAAAA", "summary": []}, None),
    ],
)
def test_thoughts_come_back_from_where_they_are(item: Any, thoughts: str | None) -> None:
    (_, turn, _) = messages(USER, {"type": "reasoning", **item}, assistant("a"), USER)
    assert turn.get("reasoning_content") == thoughts


def test_thoughts_alone_are_no_turn() -> None:
    thought = {"type": "reasoning", "summary": [said("summary_text", "s")]}
    assert [message["role"] for message in messages(USER, thought)] == ["user"]


def test_pictures_of_a_result_follow_in_the_message_of_the_user() -> None:
    found = messages(USER, CALL, {**RESULT, "output": [said("input_text", "see"), PICTURE]}, USER)
    assert found[2]["content"] == "see"
    assert found[3]["content"] == [SEEN, {"type": "text", "text": "hi"}]


def test_a_picture_keeps_the_detail_that_chats_know() -> None:
    (found,) = messages({"role": "user", "content": [PICTURE, {**PICTURE, "detail": "low"}]})
    url: dict[str, Any] = dict(found["content"][1]["image_url"])
    assert (found["content"][0], url.pop("detail"), url) == (SEEN, "low", SEEN["image_url"])


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
