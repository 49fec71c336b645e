"""Open WebUI's side calls are told by how their last user message begins."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admission.access import Identity, alias_for
from gateway.config.load import load_text
from gateway.config.snapshot import Client, Tasks
from gateway.domain.endpoints import COMPLETIONS
from gateway.routing.needs import is_task
from tests.routing.parts import request

ROUTES = "backends: {big: {url: 'http://127.0.0.1:1'}, small: {url: 'http://127.0.0.1:2'}}"
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
    assert is_task(request(messages=messages))


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
    assert not is_task(request(messages=messages))


def test_with_tools_it_is_a_chat() -> None:
    assert not is_task(request(messages=[user(TASK)], tools=[{"type": "function"}]))


def test_a_streamed_question_to_documents_is_a_chat() -> None:
    asked = "### Task:\nRespond to the user query using the provided context."
    assert not is_task(request(messages=[user(asked)], stream=True))


def test_only_for_a_client_that_has_tasks() -> None:
    snapshot = load_text(ROUTES, "routes.yaml", {}).snapshot
    asked = request(messages=[user(TASK)], model="big")
    by = {client: alias_for(snapshot, Identity("x", "x", client), asked).name for client in (None, Client("y"), WEBUI)}
    assert by == {None: "big", Client("y"): "big", WEBUI: "small"}
    assert not is_task(request(COMPLETIONS, prompt=TASK))
