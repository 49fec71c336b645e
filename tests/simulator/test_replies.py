"""What a simulated model makes of an agent's conversation."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.formats import FORMATS
from simulator.replies import Voice, raw_reply

VOICE = Voice("model-a", FORMATS["hermes"], None)
BEHIND = {"role": "user", "content": [{"type": "text", "text": "Conversation data:\nActive exec sessions: none"}]}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function"}]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "done"}


def say(*messages: dict[str, Any], tools: tuple[str, ...] = ("apply_patch", "exec", "read")) -> str:
    offered = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    return raw_reply({"messages": list(messages), "tools": offered}, VOICE, thinking=False)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_what_an_agent_puts_behind_the_question_hides_it_not() -> None:
    assert say(user("What is 12*17?"), BEHIND) == "12*17 is 204."


def test_a_result_ends_the_calls_also_with_a_message_behind_it() -> None:
    asked = user("Call the exec tool")
    assert '"name": "exec"' in say(asked, BEHIND)
    for behind in ((), (BEHIND,)):
        assert say(asked, CALL, RESULT, *behind) == "The tool answered: done"


def test_the_next_question_is_a_new_turn() -> None:
    before = (user("Call the exec tool"), CALL, RESULT, {"role": "assistant", "content": "The tool answered: done"})
    assert say(*before, user("What is 2*3?")) == "2*3 is 6."


@pytest.mark.parametrize("text", ["I have already done this", "please read it aloud"])
def test_a_tool_whose_name_is_a_plain_word_is_called_only_when_a_call_is_asked_for(text: str) -> None:
    assert "tool_call" not in say(user(text))
    assert '"name": "read"' in say(user("Use a tool to read it"))


@pytest.mark.parametrize("text", ["apply_patch now", "Apply patch now"])
def test_a_tool_with_a_name_of_its_own_is_called_when_it_is_named(text: str) -> None:
    assert '"name": "apply_patch"' in say(user(text))


def test_a_title_comes_in_the_json_that_the_prompt_shows() -> None:
    shown = '{ "title": "your concise title here" }'
    task = user(f"### Task:\nGenerate a concise title.\n### Output:\nJSON format: {shown}\n### Chat\nWhat is 12*17?")
    assert say(task, tools=()) == shown


def test_an_argument_may_be_given_in_the_prompt() -> None:
    properties = {"command": {"type": "string"}, "seconds": {"type": "integer"}, "reason": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["command", "reason"]}
    tool = {"type": "function", "function": {"name": "exec", "parameters": schema}}
    prompt = "Call the tool exec with command=`echo $((6*7))` and seconds=`3`"
    raw = raw_reply({"messages": [user(prompt)], "tools": [tool]}, VOICE, thinking=False)
    assert '{"command": "echo $((6*7))", "reason": "reason"}' in raw


def test_two_places_asked_for_at_once_are_two_calls() -> None:
    def calls(text: str, **more: Any) -> int:
        place = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": place}}
        return raw_reply({"messages": [user(text)], "tools": [tool], **more}, VOICE, thinking=False).count('"city"')

    both = "What is the weather in Oslo, and what is it in Rome? Call get_weather for both at once."
    assert calls(both) == 2
    assert calls(both, parallel_tool_calls=False) == 1
    assert calls("What is the weather in Oslo, and what is it in Rome?") == 1
