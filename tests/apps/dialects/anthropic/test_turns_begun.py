"""A last message of the assistant: the beginning of the answer, which the model continues; and what it cannot hold."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apps.dialects.parts import PICTURE, SEEN, assistant, call, chat, refused, text, tool, turns, user

ASKS = {"continue_final_message": True, "add_generation_prompt": False, "thinking": {"type": "disabled"}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sig"}
LAST = "messages.1.content"


def asked(became: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in became.items() if name in ASKS}


@pytest.mark.parametrize("fields", [{}, {"thinking": {"type": "adaptive"}}, {"tools": [tool("now")]}])
def test_the_beginning_of_an_answer_is_continued_without_thoughts(fields: dict[str, Any]) -> None:
    became = chat(user("a"), assistant("The answer"), assistant(text(" is")), **fields)
    assert became["messages"][-1] == {"role": "assistant", "content": "The answer is"}
    assert asked(became) == ASKS


def test_an_effort_of_thinking_is_left_out_with_it() -> None:
    assert "reasoning_effort" not in chat(user("a"), assistant("So"), output_config={"effort": "high"})


@pytest.mark.parametrize(
    "messages",
    [
        (user("a"), assistant("b"), user("c")),
        (user("a"), assistant("b"), {"role": "system", "content": "Be kind."}),
        (user("a"), assistant(text("b"), call("x"))),
    ],
)
def test_any_other_last_message_begins_nothing(messages: tuple[dict[str, Any], ...]) -> None:
    assert asked(chat(*messages)) == {}


@pytest.mark.parametrize("nothing", [assistant(""), assistant(), assistant(text(""))])
def test_an_empty_beginning_is_none(nothing: dict[str, Any]) -> None:
    became = chat(user("a"), nothing)
    assert became["messages"] == [{"role": "user", "content": "a"}]
    assert asked(became) == {}


@pytest.mark.parametrize("end", [" ", "\n", "\u00a0"])
def test_a_beginning_that_ends_with_white_space_is_refused(end: str) -> None:
    assert "white space" in refused(LAST, user("a"), assistant("So" + end))


def test_thoughts_alone_begin_nothing() -> None:
    assert "thoughts" in refused(LAST, user("a"), assistant(THOUGHT))


def test_a_demand_to_think_is_met_only_by_a_beginning_that_has_thought() -> None:
    enabled = {"type": "enabled", "budget_tokens": 2048}
    refused("thinking", user("a"), assistant("So"), thinking=enabled)
    became = chat(user("a"), assistant(THOUGHT, text("So")), thinking=enabled)
    assert became["messages"][-1] == {"role": "assistant", "content": "So", "reasoning_content": "hm"}
    assert asked(became) == ASKS


def test_a_json_format_would_begin_anew_behind_it() -> None:
    schema = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert "JSON" in refused(LAST, user("a"), assistant("{"), output_config=schema)


# -- pictures and documents of the assistant's ------------------------------------------------------------------------


def test_a_picture_of_the_assistants_is_shown_in_the_users_turn_behind_it() -> None:
    drawn, shown, *rest = turns(assistant(text("Look:"), PICTURE), user("and?"), assistant("b"), user("c"))
    assert drawn == {"role": "assistant", "content": "Look:"}
    marker, picture, said = shown["content"]
    assert "your own message before" in marker["text"]
    assert marker["text"].startswith("<system-reminder>")
    assert (picture, said) == (SEEN, text("and?"))
    assert rest == [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


def test_it_comes_behind_the_results_of_the_calls_beside_it() -> None:
    result = {"type": "tool_result", "tool_use_id": "x", "content": "done"}
    _, told, shown = turns(assistant(PICTURE, call("x")), user(result))
    assert told == {"role": "tool", "tool_call_id": "x", "content": "done"}
    assert shown["content"][1:] == [SEEN]


def test_in_the_last_message_it_is_refused() -> None:
    where = f"{LAST}.1"
    assert "user" in refused(where, user("a"), assistant(text("b"), PICTURE), code="input_unsupported")
