"""The items of the latest answers, to which clients refer instead of sending them again."""

from __future__ import annotations

import json

import pytest

from gateway.apps.dialects.responses import recent
from gateway.apps.dialects.responses.recent import HELD, RecentItems
from tests.apps.dialects.responses.test_exchange import PATH, TOOL, told
from tests.apps.dialects.stage import HELLO, LAST, ROLE, Stage, answers, says
from tests.scripted import raw_post

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTES = """
backends:
  s: {{url: "{s}", tool_parser: hermes}}
  t: {{url: "{t}", tool_parser: hermes}}
aliases: {{chat: [s]}}
clients: {{one: {{key: key-one}}, two: {{key: key-two}}}}
"""
CALL = {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_next_step_refers_to_the_items_of_the_last(theatre: Stage, stream: bool) -> None:
    theatre.s.play(says(ROLE, HELLO, *LAST) if stream else answers({"content": "hello"}))
    body = {"model": "chat", "input": "hi", "stream": stream}
    reply = await raw_post(theatre.gateway.url, body, PATH, ["authorization: Bearer key-one"])
    response = told(reply)[-1]["response"] if stream else reply.json
    named = {"type": "item_reference", "id": response["output"][0]["id"]}
    theatre.s.play(answers({"content": "again"}))
    gone = {"type": "item_reference", "id": "rs_gone_0"}
    following = {
        "model": "chat",
        "input": [{"role": "user", "content": "hi"}, gone, named, {"role": "user", "content": "on"}],
    }
    reply = await raw_post(theatre.gateway.url, following, PATH, ["authorization: Bearer key-one"])
    assert reply.status == 200
    said = theatre.s.turns[-1].json["messages"][1]
    assert (said["role"], said["content"]) == ("assistant", "hello")
    reply = await raw_post(theatre.gateway.url, following, PATH, ["authorization: Bearer key-two"])
    assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")


async def test_nothing_is_held_of_what_is_not_to_be_stored(theatre: Stage) -> None:
    theatre.s.play(answers(CALL))
    body = {"model": "chat", "input": "hi", "store": False, "tools": [TOOL]}
    reply = await raw_post(theatre.gateway.url, body, PATH, ["authorization: Bearer key-one"])
    named = {"type": "item_reference", "id": reply.json["output"][0]["id"]}
    reply = await raw_post(
        theatre.gateway.url, {"model": "chat", "input": [named]}, PATH, ["authorization: Bearer key-one"]
    )
    assert reply.status == 400


def response(*texts: str, start: int = 0) -> bytes:
    return json.dumps({"output": [{"id": f"msg_{start + i}", "text": text} for i, text in enumerate(texts)]}).encode()


async def test_items_are_held_for_a_while_and_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(recent, "SIZE_MOST", 400)
    items = RecentItems(lambda: now[0])
    items.add("one", response("a", "b"), local=True)
    found = items.find("one", "msg_0")
    assert found is not None
    assert found.local
    assert items.find("two", "msg_0") is None
    items.add("one", response("c" * 30, "d" * 30, start=2), local=False)
    assert [items.find("one", f"msg_{i}") is None for i in range(4)] == [True, True, True, False]
    now[0] = HELD + 1
    assert items.find("one", "msg_3") is None
    items.add("two", response("e", start=9), local=False)
    assert list(items._items) == [("two", "msg_9")]
    assert list(items._sizes) == ["two"]
