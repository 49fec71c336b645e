"""A whole chat answer as a message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.apps.dialects.answers import USAGE, Answer, captured, message


def content(**said: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = message(Answer(**said).whole())["content"]
    return found


def test_an_answer_is_a_message() -> None:
    assert message(Answer(text="hello").whole()) == {
        "id": "msg_r",
        "type": "message",
        "role": "assistant",
        "model": "main",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "output_tokens": 14},
    }


def test_thoughts_then_text_then_calls_are_its_blocks() -> None:
    calls = [("a", "now", '{"zone": "UTC"}'), ("b", "ping", "{}")]
    assert content(reasoning="hm", text="So.", calls=calls) == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "So."},
        {"type": "tool_use", "id": "a", "name": "now", "input": {"zone": "UTC"}},
        {"type": "tool_use", "id": "b", "name": "ping", "input": {}},
    ]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_are_read_under_either_name(name: str) -> None:
    answer = json.loads(Answer(text="So.").whole())
    answer["choices"][0]["message"] |= {"reasoning": None, name: "hm"}
    assert message(json.dumps(answer).encode())["content"][0] == {"type": "thinking", "thinking": "hm", "signature": ""}


def test_a_refusal_is_text() -> None:
    answer = json.loads(Answer().whole())
    answer["choices"][0]["message"]["refusal"] = "I won't."
    assert message(json.dumps(answer).encode())["content"] == [{"type": "text", "text": "I won't."}]


@pytest.mark.parametrize("white", ["", "\n\n", " \t"])
def test_white_space_alone_makes_no_block(white: str) -> None:
    assert content(text=white) == []
    assert content(text=white + "x") == [{"type": "text", "text": white + "x"}]


@pytest.mark.parametrize("arguments", ["oops", '{"city": "Os', "[1]", "7", '"x"', "null", "[" * 100_000])
def test_arguments_that_are_no_object_are_kept_as_text(arguments: str) -> None:
    [block] = content(calls=[("a", "now", arguments)])
    assert block["input"] == {"arguments": arguments}


@pytest.mark.parametrize("arguments", ["", "{}", " {} "])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    [block] = content(calls=[("a", "now", arguments)])
    assert block["input"] == {}


@pytest.mark.parametrize(
    ("finish", "met", "why", "sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", "END", "stop_sequence", "END"),
        ("stop", 151645, "end_turn", None),
        ("length", None, "max_tokens", None),
        ("length", "END", "max_tokens", None),
        ("tool_calls", None, "tool_use", None),
        ("content_filter", None, "refusal", None),
        ("of_the_future", None, "end_turn", None),
    ],
)
def test_it_tells_why_it_ended(finish: str, met: str | int | None, why: str, sequence: str | None) -> None:
    ended = message(Answer(text="x", finish=finish, stop_reason=met).whole())
    assert (ended["stop_reason"], ended["stop_sequence"]) == (why, sequence)


@pytest.mark.parametrize(
    ("details", "told"),
    [
        (None, {"input_tokens": 12}),
        ({}, {"input_tokens": 12}),
        ({"cached_tokens": None}, {"input_tokens": 12}),
        ({"cached_tokens": 0}, {"input_tokens": 12, "cache_read_input_tokens": 0}),
        ({"cached_tokens": 10}, {"input_tokens": 2, "cache_read_input_tokens": 10}),
        ({"cached_tokens": 13}, {"input_tokens": 0, "cache_read_input_tokens": 13}),
    ],
)
def test_what_came_from_the_prefix_cache_is_counted_apart(details: Any, told: dict[str, int]) -> None:
    usage = message(Answer(usage=USAGE | {"prompt_tokens_details": details}).whole())["usage"]
    assert usage == told | {"output_tokens": 14}


def test_an_answer_without_usage_has_no_tokens() -> None:
    assert message(Answer(usage=None).whole())["usage"] == {"input_tokens": 0, "output_tokens": 0}


REAL = {
    "messages": Answer("\nhm.\n", "\n\nHello."),
    "messages_tool": Answer(
        "\nhm.\n",
        "\n\nSure.\n",
        [("chatcmpl-tool-a8c69e2cb5fae142", "get_weather", '{"city": "Oslo"}')],
        "tool_calls",
        usage={"prompt_tokens": 169, "completion_tokens": 39},
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_it_says_what_a_real_vllm_says_on_its_own_messages_api(name: str) -> None:
    theirs = json.loads(captured(name))
    assert theirs["content"][0].pop("signature")
    ours = message(REAL[name].whole())
    assert ours["content"][0].pop("signature") == ""
    compared = ("type", "role", "content", "stop_reason", "usage")
    assert {key: ours[key] for key in compared} == {key: theirs[key] for key in compared}
