"""The turns of a Messages body as the messages of a chat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.apps.dialects.parts import (
    PICTURE,
    PNG,
    SEEN,
    assistant,
    call,
    refused,
    result,
    text,
    turns,
    user,
)


def said(*content: Any) -> Any:
    """What a user's turn becomes the content of."""
    [message] = turns(user(*content))
    assert message["role"] == "user"
    return message["content"]


def answered(content: Any, **more: Any) -> list[dict[str, Any]]:
    """What a result becomes: the messages behind the call."""
    return turns(assistant(call("a")), user(result("a", content, **more)))[1:]


# -- whose turn it is -------------------------------------------------------------------------------------------------


def test_a_text_stays_a_text() -> None:
    assert turns(user("hi"), assistant("hello"), user(text("and?"))) == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "and?"},
    ]


def test_an_empty_text_is_left_out() -> None:
    assert said(text(""), text("hi"), text("")) == "hi"


def test_messages_of_the_same_side_are_one() -> None:
    assert turns(user("a"), user(text("b"), PICTURE), assistant("c"), assistant("d"), user("e")) == [
        {"role": "user", "content": [text("a"), text("b"), SEEN]},
        {"role": "assistant", "content": "cd"},
        {"role": "user", "content": "e"},
    ]


def test_the_calls_of_two_messages_in_a_row_are_those_of_one() -> None:
    [message, *_] = turns(assistant(call("a")), assistant(call("b")), user(result("a"), result("b")))
    assert [made["id"] for made in message["tool_calls"]] == ["a", "b"]


def test_a_system_message_among_them_is_part_of_the_users_turn_in_its_place() -> None:
    later = {"role": "system", "content": [text("Now be kind.", cache_control={"type": "ephemeral"})]}
    reminder = "<system-reminder>\nNow be kind.\n</system-reminder>"
    assert turns(user("a"), later, user("b"), assistant("c"), system="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [text("a"), text(reminder), text("b")]},
        {"role": "assistant", "content": "c"},
    ]
    assert turns(user("a"), assistant("c"), {"role": "system", "content": "Now be kind."})[2] == {
        "role": "user",
        "content": reminder,
    }


def test_a_system_message_may_have_settings_alone() -> None:
    settings = {"role": "system", "output_config": {"effort": "low"}}
    assert turns(user("a"), settings) == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize("nothing", [user(""), user(), user(text("")), {"role": "system", "content": ""}])
def test_a_turn_that_says_nothing_still_stands_between_two_of_the_other_side(nothing: dict[str, Any]) -> None:
    assert [m["role"] for m in turns(user("a"), assistant("b"), nothing, assistant("c"))] == [
        *("user", "assistant", "user", "assistant")
    ]
    assert turns(user("a"), assistant("b"), nothing)[-1] == {"role": "user", "content": ""}


# -- what the assistant said ------------------------------------------------------------------------------------------


def test_thoughts_go_back_with_what_they_led_to() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    [message, *_] = turns(assistant(thought, text("So."), call("a", "now", zone="UTC")), user(result("a")))
    [made] = message.pop("tool_calls")
    assert message == {"role": "assistant", "content": "So.", "reasoning_content": "hm"}
    assert json.loads(made["function"].pop("arguments")) == {"zone": "UTC"}
    assert made == {"id": "a", "type": "function", "function": {"name": "now"}}


def test_thoughts_that_nobody_can_read_are_left_out() -> None:
    assert turns(assistant({"type": "redacted_thinking", "data": "AAAA"}, text("b"))) == [
        {"role": "assistant", "content": "b"}
    ]


@pytest.mark.parametrize("input_", [{}, None])
def test_a_call_without_arguments_has_an_empty_object(input_: object) -> None:
    [message] = turns(assistant({**call("a"), "input": input_}))
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


# -- results ----------------------------------------------------------------------------------------------------------


def test_results_come_first_and_then_what_the_user_says() -> None:
    both = assistant(call("a"), call("b"))
    assert turns(both, user(text("wait"), result("b", "two"), result("a", [text("one"), text("more")]))) == [
        turns(both)[0],
        {"role": "tool", "tool_call_id": "b", "content": "two"},
        {"role": "tool", "tool_call_id": "a", "content": "one\nmore"},
        {"role": "user", "content": "wait"},
    ]


@pytest.mark.parametrize("nothing", [None, "", [], [text("")]])
def test_a_result_may_be_empty(nothing: object) -> None:
    assert answered(nothing) == [{"role": "tool", "tool_call_id": "a", "content": ""}]


def test_the_pictures_of_a_result_are_in_the_message_behind_it() -> None:
    told, shown = answered([text("see"), PICTURE])
    assert told == {"role": "tool", "tool_call_id": "a", "content": "see"}
    assert shown == {"role": "user", "content": [SEEN]}


def test_a_result_that_is_a_picture_alone_says_where_it_is() -> None:
    told, shown = answered([PICTURE])
    assert "next message" in told["content"]
    assert shown == {"role": "user", "content": [SEEN]}


def test_an_error_says_that_it_is_one() -> None:
    assert answered("no such file", is_error=True)[0]["content"] == "Error: no such file"
    assert answered("an ERROR: no such file", is_error=True)[0]["content"] == "an ERROR: no such file"
    assert answered("fine", is_error=False)[0]["content"] == "fine"


def test_a_result_may_be_a_document_or_what_a_search_found() -> None:
    found = {"type": "search_result", "title": "A page", "source": "page.html", "content": [text("words")]}
    paper = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a paper"}}
    assert answered([found, paper])[0]["content"] == "A page\npage.html\nwords\na paper"


# -- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "content"),
    [
        ("", 7),
        ("", {"type": "text"}),
        ("", None),
        (".1", [text("a"), "b"]),
        (".1", [text("a"), {"text": "b"}]),
        (".0", [{"type": 7}]),
        (".0.text", [{"type": "text"}]),
        (".0.text", [{"type": "text", "text": ["a"]}]),
        (".0.source.type", [{"type": "image"}]),
        (".0.source.type", [{"type": "image", "source": {"type": "path"}}]),
        (".0.source.url", [{"type": "image", "source": {"type": "url"}}]),
        (".0.source.media_type", [{"type": "image", "source": {"type": "base64", "data": "AAAA"}}]),
        (".0.source.data", [{"type": "image", "source": {**PNG, "data": 7}}]),
        (".0.source", [{"type": "document"}]),
        (".0.source.data", [{"type": "document", "source": {"type": "text"}}]),
        (".0.source.content", [{"type": "document", "source": {"type": "content"}}]),
        (".0.source.content.1.text", [{"type": "document", "source": {"type": "content", "content": [text("a"), {
            "type": "text"}]}}]),
        (".0.content", [{"type": "search_result"}]),
        (".0.content.0", [{"type": "search_result", "content": [7]}]),
        (".0.tool_use_id", [{"type": "tool_result", "content": "a"}]),
        (".0.content", [result("a", 7)]),
        (".1.content.0.text", [text("a"), result("a", [{"type": "text"}])]),
        (".0.content.0.tool_name", [result("a", [{"type": "tool_reference"}])]),
        (".0.tool", [{"type": "tool_addition"}]),
        (".0.tool.tool_name", [{"type": "tool_addition", "tool": {"type": "tool_reference"}}]),
        (".0.tool.name", [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": 7}}]),
    ],
)  # fmt: skip
def test_a_users_block_that_is_wrong_is_named_by_its_place(field: str, content: Any) -> None:
    refused(f"messages.1.content{field}", assistant("hi"), {"role": "user", "content": content})


@pytest.mark.parametrize(
    ("field", "block"),
    [
        ("id", {"type": "tool_use", "name": "now", "input": {}}),
        ("name", {"type": "tool_use", "id": "a", "input": {}}),
        ("name", {"type": "tool_use", "id": "a", "name": None}),
        ("thinking", {"type": "thinking", "signature": ""}),
        ("text", {"type": "text", "text": 7}),
    ],
)
def test_a_block_of_the_assistants_that_is_wrong_is_named_by_its_place(field: str, block: dict[str, Any]) -> None:
    """In the messages as they came, not as they were put together."""
    refused(f"messages.3.content.1.{field}", user("a"), user("b"), assistant("c"), assistant(text("d"), block))
