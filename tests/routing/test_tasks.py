"""Open WebUI's side calls are told by how their last user message begins."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.snapshot import Client, Tasks
from gateway.domain.request import COMPLETIONS
from gateway.routing.tasks import task_alias
from tests.routing.parts import request

WEBUI = Client("webui", tasks=Tasks("small"))
TASK = "### Task:\nGenerate a concise, 3-5 word title with an emoji."


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    "messages",
    [
        [user(TASK)],
        [{"role": "system", "content": "x"}, user("hi"), {"role": "assistant", "content": "ho"}, user(TASK)],
        [user([{"type": "text", "text": TASK}])],
        [user("\n" + TASK), {"role": "assistant", "content": ""}],
    ],
)
def test_a_side_call_goes_where_the_client_says(messages: list[Any]) -> None:
    assert task_alias(request(messages=messages), WEBUI) == "small"


@pytest.mark.parametrize(
    "messages",
    [
        [user("hello")],
        [user("What does ### Task: mean?")],
        [user(TASK), user("and now really")],
        [{"role": "system", "content": TASK}, user("hello")],
        [{"role": "assistant", "content": TASK}],
        "### Task:",
        [None, 7, {"role": "user"}, user(None), user([]), user([{"type": "text", "text": 7}, "### Task:"])],
        [],
    ],
)
def test_a_chat_is_no_side_call(messages: Any) -> None:
    assert task_alias(request(messages=messages), WEBUI) is None


def test_with_tools_it_is_a_chat() -> None:
    assert task_alias(request(messages=[user(TASK)], tools=[{"type": "function"}]), WEBUI) is None


def test_a_streamed_question_to_documents_is_a_chat() -> None:
    asked = "### Task:\nRespond to the user query using the provided context."
    assert task_alias(request(messages=[user(asked)], stream=True), WEBUI) is None


def test_only_for_a_client_that_has_tasks() -> None:
    asked = request(messages=[user(TASK)])
    assert task_alias(asked, None) is None
    assert task_alias(asked, Client("other")) is None
    assert task_alias(request(COMPLETIONS, prompt=TASK), WEBUI) is None
