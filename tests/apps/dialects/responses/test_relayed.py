"""Responses of servers that have `/v1/responses` themselves: passed on as they are, checked and mended as chats."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.proxy import reply as gateway_reply
from tests import native_responses as native
from tests.apps.dialects.responses.test_exchange import PATH, TOOL, ask, kinds, told
from tests.apps.dialects.stage import HELLO, LAST, LEAK, ROLE, Stage, answers, says
from tests.scripted import SSE_HEAD, Turn, answer, chunked, json_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTES = """
defaults: {{timeouts: {{idle: 300ms, first_byte: 30s}}}}
backends:
  s: {{url: "{s}", tool_parser: hermes}}
  t: {{url: "{t}", tool_parser: hermes, responses: chat}}
  u: {{url: "{t}", tool_parser: hermes}}
  late: {{url: "{s}", timeouts: {{hold: 100ms}}}}
  host: {{url: "{s}", engine: openai, responses: hosted}}
aliases:
  chat: [s]
  pair: [s, t]
  own: [s, u]
  slow: [late, t]
  hosted: [t, host]
  forced: {{use: [s], params: {{temperature: 0.3, presence_penalty: 1.5}}, min_max_tokens: 40}}
  unknown: {{use: [s], params: {{typical_p: 0.5}}}}
"""
EVENTS = native.stream(native.thoughts("hm, well"), native.message("hello you"))


@pytest.fixture
def stage(stage: Stage) -> Stage:
    """`s` has `/v1/responses`."""
    stage.s.responds, stage.t.responds = True, False
    return stage


async def test_a_stream_is_passed_on_in_its_own_bytes(stage: Stage) -> None:
    stage.s.play(says(*EVENTS))
    reply = await ask(stage, truncation="auto", background=False, previous_response_id=None, top_logprobs=0)
    (turn,) = stage.s.turns
    assert (turn.path, turn.json["model"], turn.json["store"]) == (PATH, "served/model", False)
    assert turn.json["input"] == "hi"
    assert "messages" not in turn.json
    assert "truncation" not in turn.json  # no prompt is cut
    assert [event + b"\n\n" for event in reply.events[2:-1]] == EVENTS[2:-1]
    for beginning in (*told(reply)[:2], told(reply)[-1]):
        assert (beginning["response"]["id"], beginning["response"]["model"]) == ("resp_my-id", "chat")
        assert beginning["response"]["own_field"] == 1
    assert b"[DONE]" not in reply.body
    assert reply.ended


async def test_a_whole_answer_is_passed_on_with_the_clients_names(stage: Stage) -> None:
    sent = native.whole(native.thoughts("hm"), native.message("hello"))
    stage.s.play(lambda turn: turn.send(json_answer(sent)))
    reply = await ask(stage, stream=False, store=True)
    assert reply.json == {**sent, "id": "resp_my-id", "model": "chat", "previous_response_id": None}


async def test_what_its_server_would_do_for_all_is_left_out(stage: Stage) -> None:
    sent = native.whole(native.message("hello"))
    stage.s.play(lambda turn: turn.send(json_answer(sent)))
    reply = await ask(stage, stream=False, priority=-5, keep_alive=0, request_id="theirs")
    (turn,) = stage.s.turns
    assert turn.path == PATH
    assert {"priority", "keep_alive", "request_id"}.isdisjoint(turn.json)
    assert reply.headers["x-gateway-adapted"] == "server_fields_stripped"


async def test_what_the_alias_sets_is_written_into_the_clients_body(stage: Stage) -> None:
    stage.s.play(says(*EVENTS))
    await ask(stage, "forced", max_output_tokens=5, top_p=0.5, metadata={"a": "b"})
    sent = stage.s.turns[0].json
    assert (sent["temperature"], sent["presence_penalty"], sent["max_output_tokens"]) == (0.3, 1.5, 40)
    assert (sent["top_p"], sent["metadata"]) == (0.5, {"a": "b"})
    assert "stream_options" not in sent


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [TOOL]}},
        {"reasoning": {"summary": "auto"}},
        {"include": ["reasoning.encrypted_content"]},
        {"typical_p": 0.5},
        {"instructions": "a", "input": [{"role": "developer", "content": "b"}, {"role": "user", "content": "c"}]},
        {"input": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,aaaa"}]}]},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_what_it_answers_worse_there_is_asked_as_a_chat(stage: Stage, more: dict[str, Any]) -> None:
    stage.s.play(answers({"content": "hello"}))
    reply = await ask(stage, stream=False, **more)
    assert (reply.status, stage.s.turns[0].path) == (200, "/v1/chat/completions")


async def test_a_call_that_is_demanded_is_asked_for_there_and_made_elsewhere_if_not(stage: Stage) -> None:
    stage.s.play(lambda turn: turn.send(json_answer(native.whole(native.message("No.")))))
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    said = {"tool_calls": [{"id": "c", "type": "function", "function": function}]}
    stage.t.play(answers({"content": None, **said}, "tool_calls"))
    reply = await ask(stage, "pair", stream=False, tools=[TOOL], tool_choice="required")
    assert stage.s.turns[0].json["tool_choice"] == "required"
    assert [item["type"] for item in reply.json["output"]] == ["function_call"]


async def test_params_it_would_ignore_there_are_asked_as_a_chat(stage: Stage) -> None:
    stage.s.play(answers({"content": "hello"}))
    assert (await ask(stage, "unknown", stream=False)).status == 200
    assert stage.s.turns[0].json["typical_p"] == 0.5
    assert stage.s.turns[0].path == "/v1/chat/completions"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_404_is_asked_as_a_chat_at_once_and_remembered(stage: Stage, stream: bool) -> None:
    stage.s.responds = False
    stage.s.play(says(ROLE, HELLO, *LAST) if stream else answers({"content": "hello"}))
    for _ in range(2):
        reply = await ask(stage, stream=stream)
        assert (reply.status, reply.headers["x-gateway-attempts"]) == (200, "1")
    state = stage.gateway.gateway.fleet["s"]
    assert set(state.facts.lacks) == {"endpoint:responses"}
    async with httpx.AsyncClient(base_url=stage.gateway.url, trust_env=False) as client:
        shown = (await client.get("/status")).json()["backends"]["s"]["learned"]
    assert shown["taught"]["endpoint:responses"]["request"] == "my-id"
    stage.s.responds = True  # it is not asked there again ...
    await ask(stage, stream=stream)
    assert [turn.path for turn in stage.s.turns] == ["/v1/chat/completions"] * 3
    state.saw_version("0.33.1" if stream else "0.33.0")  # ... until it is another version
    stage.s.play(says(*EVENTS) if stream else lambda turn: turn.send(json_answer(native.whole(native.message("x")))))
    await ask(stage, stream=stream)
    assert [turn.path for turn in stage.s.turns] == [PATH]


@pytest.mark.parametrize("status", ["400 Bad Request", "422 Unprocessable Entity", "500 Internal Server Error"])
async def test_a_request_that_it_refuses_there_is_asked_as_a_chat_and_nothing_is_learned(
    stage: Stage, status: str
) -> None:
    async def refuses(turn: Turn) -> None:
        await turn.send(json_answer({"error": {"message": "bad item", "code": 400}}, status))

    stage.s.play(refuses, answers({"content": "hello"}))
    reply = await ask(stage, stream=False)
    assert (reply.status, reply.headers["x-gateway-attempts"]) == (200, "1")
    assert not stage.gateway.gateway.fleet["s"].facts.lacks


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_leaked_call_is_mended(stage: Stage, stream: bool) -> None:
    items = native.thoughts("hm"), native.message("Wait. " + LEAK)
    stage.s.play(says(*native.stream(*items)) if stream else lambda turn: turn.send(json_answer(native.whole(*items))))
    reply = await ask(stage, stream=stream, tools=[TOOL])
    response = told(reply)[-1]["response"] if stream else reply.json
    assert stage.s.turns[0].path == PATH
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]
    assert response["output"][1]["content"][0]["text"].strip() == "Wait."
    assert json.loads(response["output"][2]["arguments"]) == {"city": "Oslo"}
    assert response["status"] == "completed"
    if stream:
        done = [event["item"] for event in told(reply) if event["type"] == "response.output_item.done"]
        assert done == response["output"]


async def test_a_leaked_call_alone_leaves_no_empty_message(stage: Stage) -> None:
    stage.s.play(says(*native.stream(native.message(LEAK))))
    events = told(await ask(stage, tools=[TOOL]))
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["function_call"]
    added = [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"]
    assert added == ["function_call"]


async def test_text_that_the_checks_held_back_for_a_while_is_relayed(stage: Stage) -> None:
    items = native.message("\n\nOK. a <b> c"), native.call({"city": "Oslo"})
    sent = native.stream(*items, piece=1)
    stage.s.play(says(*sent))
    reply = await ask(stage, tools=[TOOL])
    events = told(reply)
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == "\n\nOK. a <b> c"
    assert events[-1]["response"]["output"] == list(items)
    assert {e["item_id"] for e in events if e["type"] == "response.output_text.delta"} == {"msg_up"}


async def test_an_empty_answer_is_tried_at_the_next_backend(stage: Stage) -> None:
    stage.s.play(says(*native.stream(native.thoughts("hm"))))
    stage.t.play(says(ROLE, HELLO, *LAST))
    reply = await ask(stage, "pair", tools=[TOOL])
    events = told(reply)
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]
    assert events[-1]["response"]["output"][1]["content"][0]["text"] == "hello"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


async def test_an_answer_after_the_thoughts_of_another_server_takes_its_place_behind_them(stage: Stage) -> None:
    stage.t.responds = True
    stage.s.play(says(*native.stream(native.thoughts("hm"))))
    stage.t.play(says(*native.stream(native.thoughts("so"), native.message("hello"))))
    events = told(await ask(stage, "own", tools=[TOOL]))
    assert stage.t.turns[0].path == PATH
    left = {**native.thoughts("hm"), "status": "completed"}  # its end had not been sent
    output = [left, native.thoughts("so"), native.message("hello")]
    assert events[-1]["response"]["output"] == output
    done = [(e["output_index"], e["item"]) for e in events if e["type"] == "response.output_item.done"]
    assert done == list(enumerate(output))
    assert {e["output_index"] for e in events if e["type"] == "response.output_text.delta"} == {2}


@pytest.mark.parametrize(
    "ending",
    [
        native.event("error", 3, code="x", message="boom", param=None),
        native.event("response.failed", 3, response={"error": {"code": "server_error", "message": "boom"}}),
        b'data: {"error": {"message": "boom"}}\n\n',
        b'data: {"no": "type"}\n\n',
    ],
    ids=["error", "failed", "envelope", "untyped"],
)
async def test_an_error_in_a_200_is_a_failure_and_the_next_backend_serves(stage: Stage, ending: bytes) -> None:
    stage.s.play(says(*EVENTS[:3], ending))
    stage.t.play(says(ROLE, HELLO, *LAST))
    reply = await ask(stage, "pair")
    assert reply.headers["x-gateway-backend"] == "t"
    assert told(reply)[-1]["response"]["output"][0]["content"][0]["text"] == "hello"
    assert "boom" not in reply.body.decode()


async def test_a_stream_that_ends_early_after_content_is_told_and_cut(stage: Stage) -> None:
    stage.s.play(says(*EVENTS[:-3]))
    reply = await ask(stage)
    assert kinds(reply)[-2:] == ["error", "failed"]
    assert not reply.ended


async def test_silence_before_the_first_event_goes_to_the_next_backend_with_beats_between(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_reply, "HEARTBEAT", 0.05)

    async def waits(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(*EVENTS[:2]))
        await stage.until_committed()
        (request,) = stage.gateway.requests()
        first = request.timer.beat_at
        await stage.gateway.until(lambda: request.timer.beat_at > first)
        await turn.send(chunked(*EVENTS[2:]) + b"0\r\n\r\n")

    stage.s.play(waits)
    reply = await ask(stage, "slow")
    events = told(reply)  # numbered without a gap
    assert kinds(reply).count("created") == 1
    assert kinds(reply).count("keepalive") >= 1
    assert events[-1]["response"]["output"] == [native.thoughts("hm, well"), native.message("hello you")]


async def test_what_was_cut_by_the_limit_is_incomplete(stage: Stage) -> None:
    cut: dict[str, Any] = {"incomplete_details": {"reason": "max_output_tokens"}}
    stage.s.play(says(*native.stream(native.message("hel"), status="incomplete", **cut)))
    reply = await ask(stage, max_output_tokens=3)
    assert kinds(reply)[-1] == "incomplete"
    assert told(reply)[-1]["response"]["incomplete_details"] == cut["incomplete_details"]


SEARCH: dict[str, Any] = {"tools": [{"type": "web_search"}, TOOL]}
FILE = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,aaaa"}
WITH_FILE = {"input": [{"role": "user", "content": [FILE, {"type": "input_text", "text": "what?"}]}]}


@pytest.mark.parametrize("more", [SEARCH, WITH_FILE], ids=["search", "file"])
async def test_what_no_chat_can_carry_goes_to_a_server_that_hosts_it(stage: Stage, more: dict[str, Any]) -> None:
    found = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"query": "x"}}
    stage.s.play(says(*native.stream(found, native.message("hello"))))
    reply = await ask(stage, "hosted", **more)
    assert reply.headers["x-gateway-backend"] == "host"
    assert not stage.t.turns
    sent = stage.s.turns[0].json
    assert {name: sent[name] for name in more} == more
    assert told(reply)[-1]["response"]["output"] == [found, native.message("hello")]


async def test_a_tool_that_no_backend_hosts_is_left_out_where_it_is_only_offered(stage: Stage) -> None:
    stage.s.play(answers({"content": "hello"}))
    reply = await ask(stage, "pair", **SEARCH)
    assert (reply.status, reply.headers["x-gateway-left-out"]) == (200, "web_search")
    assert [tool["function"]["name"] for tool in stage.s.turns[0].json["tools"]] == [TOOL["name"]]


@pytest.mark.parametrize("more", [{**SEARCH, "tool_choice": {"type": "web_search"}}, WITH_FILE], ids=["search", "file"])
async def test_where_no_backend_hosts_it_the_field_is_named(stage: Stage, more: dict[str, Any]) -> None:
    reply = await ask(stage, "pair", **more)
    assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
    assert reply.json["error"]["param"] in ("tool_choice", "input[0].content[0]")


async def test_a_plan_is_explained_for_what_no_chat_can_carry(stage: Stage) -> None:
    request = {"input": "hi", **SEARCH, "tool_choice": {"type": "web_search"}}
    found = await stage.gateway.client.post("/admin/explain", json={"alias": "hosted", "request": request})
    assert found.status_code == 200
    assert "runs no tools of its own" in found.text


async def test_a_server_without_the_endpoint_hosts_nothing(stage: Stage) -> None:
    stage.s.responds = False
    for _ in range(2):
        reply = await ask(stage, "hosted", **SEARCH, tool_choice={"type": "web_search"})
        assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
    assert "endpoint:responses" in stage.gateway.gateway.fleet["host"].facts.lacks


async def test_a_404_about_something_else_teaches_nothing(stage: Stage) -> None:
    lost = json_answer({"error": {"message": "Vector store vs_1 is unknown", "code": None}}, "404 Not Found")
    stage.s.play(lambda turn: turn.send(lost))
    reply = await ask(stage, "hosted", tools=[{"type": "file_search", "vector_store_ids": ["vs_1"]}])
    assert reply.status == 404
    assert not stage.gateway.gateway.fleet["host"].facts.lacks


async def test_an_answer_of_another_type_is_a_failure(stage: Stage) -> None:
    stage.s.play(lambda turn: turn.send(answer(b"<html>", content_type="text/html")))
    stage.t.play(answers({"content": "hello"}))
    reply = await ask(stage, "pair", stream=False)
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "t")
