"""A chat's messages in Ollama's format: parts, pictures, calls and their results."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engines.base import InexpressibleRequest
from gateway.engines.ollama.request import read_messages


def said(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return read_messages(list(messages))[0]


def test_parts_become_text_and_pictures() -> None:
    parts = [
        {"type": "text", "text": "one"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": "data:image/jpeg;base64,BBBB"},
        {"type": "text", "text": "two"},
    ]
    assert said({"role": "user", "content": parts}) == [
        {"role": "user", "content": "one\ntwo", "images": ["AAAA", "BBBB"]}
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.invalid/cat.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png,notbase64"}},
        {"type": "image_url"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "text"},
        "text",
    ],
)
def test_a_part_that_ollama_cannot_take_is_refused_with_its_place(part: object) -> None:
    with pytest.raises(InexpressibleRequest, match=r"messages\[0\].content"):
        said({"role": "user", "content": [part]})


def test_a_picture_by_url_is_refused_with_what_to_do() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.invalid/cat.png"}}
    with pytest.raises(InexpressibleRequest, match="data:image/png;base64"):
        said({"role": "user", "content": [part]})


def test_developer_speaks_as_system() -> None:
    assert said({"role": "developer", "content": "be brief"}) == [{"role": "system", "content": "be brief"}]


def test_calls_and_results_of_a_conversation() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone":"UTC"}'}}
    ours = said(
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "noon"}]},
    )
    assert ours == [
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [{"function": {"name": "now", "arguments": {"zone": "UTC"}}, "id": "call_1"}],
        },
        {"role": "tool", "content": "noon", "tool_name": "now", "tool_call_id": "call_1"},
    ]


def test_a_result_names_the_tool_of_the_last_call_with_its_id() -> None:
    def turn(name: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"id": "same", "function": {"name": name, "arguments": ""}}]}

    result = {"role": "tool", "tool_call_id": "same", "content": ""}
    ours = said(turn("first"), result, turn("second"), result)
    assert [m["tool_name"] for m in ours if m["role"] == "tool"] == ["first", "second"]


@pytest.mark.parametrize(
    ("arguments", "ours"),
    [
        ("", {}),
        (None, {}),
        ({"a": 1}, {"a": 1}),
        ('{"a": ', {"arguments": '{"a": '}),
        ("[1]", {"arguments": [1]}),
    ],
)
def test_arguments_are_always_an_object(arguments: object, ours: object) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    assert said({"role": "assistant", "tool_calls": [call]})[0]["tool_calls"][0]["function"]["arguments"] == ours


def test_reasoning_content_is_accepted_too() -> None:
    assert said({"role": "assistant", "content": "x", "reasoning_content": "hm"})[0]["thinking"] == "hm"


def test_prompt_text_is_counted_without_pictures_and_thoughts() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "größe"}, picture]},
        {"role": "assistant", "content": "yes", "reasoning": "long thoughts"},
    ]
    assert read_messages(messages)[1] == len("größe".encode()) + 3
