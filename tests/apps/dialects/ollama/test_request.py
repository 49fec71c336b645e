"""Bodies of Ollama's API as bodies of chats, completions and embeddings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.apps.dialects.ollama.request import OllamaRequest, chat_of, embedding_of, generation_of
from gateway.errors import GatewayError

HI = {"role": "user", "content": "hi"}
PNG, JPEG = "iVBORw0KGgo=", "/9j/4AAQ"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
CALL = {"function": {"name": "now", "arguments": {"zone": "UTC"}}}
WHOLE: dict[str, Any] = {"model": "main", "messages": [HI], "stream": False}
USER = {"role": "user", "content": "hi"}


def resolved(model: str) -> str:
    return model.removesuffix(":latest")


def read(body: dict[str, Any], by: Callable[..., OllamaRequest] = chat_of) -> dict[str, Any]:
    """The translated body."""
    found: dict[str, Any] = json.loads(by(json.dumps(body).encode(), resolved).body)
    return found


@pytest.mark.parametrize(
    ("sent", "became"),
    [
        ({}, {}),
        ({"keep_alive": "5m", "truncate": True, "shift": True}, {}),
        ({"options": {"num_predict": 20, "num_ctx": 4096, "temperature": 0}}, {"max_tokens": 20, "temperature": 0}),
        ({"options": {"num_predict": -1, "stop": ["END"], "top_k": 5}}, {"stop": ["END"], "top_k": 5}),
        ({"options": {"repeat_penalty": 1.2, "seed": 7}}, {"repetition_penalty": 1.2, "seed": 7}),
        ({"options": None, "format": None, "think": None, "tools": []}, {}),
        ({"format": "json"}, {"response_format": {"type": "json_object"}}),
        ({"format": ""}, {}),
        (
            {"format": SCHEMA},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        ({"think": True}, {"thinking": {"type": "enabled"}}),
        ({"think": False}, {"thinking": {"type": "disabled"}}),
        ({"think": "low"}, {"reasoning_effort": "low"}),
        ({"tools": [TOOL]}, {"tools": [TOOL]}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"user": "me"}, {"user": "me"}),
    ],
)
def test_fields_of_a_chat(sent: dict[str, Any], became: dict[str, Any]) -> None:
    assert read(WHOLE | sent) == {"model": "main", "messages": [USER]} | became


def test_a_chat_streams_unless_it_says_otherwise() -> None:
    asked = read({"model": "main:latest", "messages": [HI]})
    assert asked == {
        "model": "main",
        "messages": [USER],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_pictures_become_parts_with_their_kind() -> None:
    [message] = read(WHOLE | {"messages": [{**HI, "images": [PNG, JPEG]}]})["messages"]
    assert message["content"][0] == {"type": "text", "text": "hi"}
    urls = [part["image_url"]["url"] for part in message["content"][1:]]
    assert urls == [f"data:image/png;base64,{PNG}", f"data:image/jpeg;base64,{JPEG}"]


def test_results_are_matched_to_calls_by_the_name_of_the_tool() -> None:
    other = {"function": {"name": "other", "arguments": {}}}
    told = [
        HI,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [CALL, other, CALL]},
        {"role": "tool", "tool_name": "other", "content": "b"},
        {"role": "tool", "tool_name": "now", "content": "a"},
        {"role": "tool", "content": "c"},
    ]
    _, call, *results = read(WHOLE | {"messages": told})["messages"]
    ids = [one["id"] for one in call["tool_calls"]]
    assert call["reasoning_content"] == "hm"
    assert call["tool_calls"][0]["function"] == {"name": "now", "arguments": '{"zone":"UTC"}'}
    assert len(set(ids)) == 3
    assert [one["tool_call_id"] for one in results] == [ids[1], ids[0], ids[2]]


def test_ids_of_calls_are_kept() -> None:
    told = [HI, {"role": "assistant", "tool_calls": [{"id": "x", **CALL}]}, {"role": "tool", "tool_call_id": "x"}]
    _, call, result = read(WHOLE | {"messages": told})["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "x"


@pytest.mark.parametrize(
    ("sent", "became"),
    [
        ({"prompt": "hi"}, {"messages": [USER]}),
        ({"prompt": "hi", "system": "s", "suffix": ""}, {"messages": [{"role": "system", "content": "s"}, USER]}),
        ({"prompt": "hi", "raw": True, "system": "s"}, {"prompt": "hi"}),
        (
            {"prompt": "a", "suffix": "b", "options": {"num_predict": 9}},
            {"prompt": "a", "suffix": "b", "max_tokens": 9},
        ),
    ],
)
def test_a_generation_is_a_chat_or_raw_a_completion(sent: dict[str, Any], became: dict[str, Any]) -> None:
    assert read({"model": "main", "stream": False} | sent, generation_of) == {"model": "main"} | became


@pytest.mark.parametrize("field", ["template", "context"])
def test_what_would_change_the_prompt_is_said_to_be_left_out(field: str) -> None:
    body = {"model": "main", "prompt": "hi", field: [1], "keep_alive": 5}
    assert generation_of(json.dumps(body).encode(), resolved).left_out == [field]


@pytest.mark.parametrize(("keep_alive", "unload"), [(None, False), ("5m", False), (0, True), ("0", True)])
def test_a_request_without_a_prompt_only_loads(keep_alive: object, unload: bool) -> None:
    for by in (chat_of, generation_of):
        asked = by(json.dumps({"model": "main", "keep_alive": keep_alive}).encode(), resolved)
        assert (asked.empty, asked.unload) == (True, unload)


def test_embeddings_of_both_kinds() -> None:
    cut = {"model": "main", "truncate_prompt_tokens": -1}
    assert read({"model": "main", "input": ["a"], "truncate": True}, embedding_of) == {**cut, "input": ["a"]}
    assert read({"model": "main", "prompt": "a", "options": {}}, embedding_of) == {**cut, "input": "a"}
    whole = {"model": "main", "input": "a", "truncate": False}
    assert read(whole, embedding_of) == {"model": "main", "input": "a"}


def test_a_chat_that_may_be_cut_is_told_that_it_is_not() -> None:
    for truncate, told in ((True, ["truncate"]), (False, []), (None, [])):
        body = {"model": "main", "messages": [{"role": "user", "content": "a"}], "truncate": truncate}
        assert chat_of(json.dumps(body).encode(), resolved).left_out == told


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"messages": [HI]}, "model"),
        ({"model": "main", "messages": {}}, None),
        ({"model": "main", "messages": "hi"}, "messages"),
        ({"model": "main", "messages": ["hi"]}, "messages[0]"),
        ({"model": "main", "messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"model": "main", "messages": [{"role": "user", "content": [1]}]}, "messages[0].content"),
        ({"model": "main", "messages": [{**HI, "images": [1]}]}, "messages[0].images"),
        ({"model": "main", "messages": [{**HI, "tool_calls": 1}]}, "messages[0].tool_calls"),
        ({"model": "main", "messages": [{**HI, "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        (WHOLE | {"format": "xml"}, "format"),
        (WHOLE | {"options": [1]}, "options"),
    ],
)
def test_an_invalid_body_is_refused_by_the_name_of_its_field(body: dict[str, Any], named: str | None) -> None:
    if named is None:  # an empty value is none
        assert chat_of(json.dumps(body).encode(), resolved).empty
        return
    with pytest.raises(GatewayError) as refused:
        chat_of(json.dumps(body).encode(), resolved)
    assert (refused.value.status, refused.value.param) == (400, named)


def test_pictures_do_not_go_with_a_raw_prompt() -> None:
    with pytest.raises(GatewayError, match="images"):
        read({"model": "main", "prompt": "a", "raw": True, "images": [PNG]}, generation_of)
