"""The input of a Responses body as the messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apps.dialects.responses.test_request import CALL, PICTURE, RESULT, USER, assistant, chat, messages, said

SEEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}


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
