"""Responses requests through the gateway: what goes up, what comes down, what a client sees when a backend fails."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from gateway.apps.dialects.app import read_request
from gateway.domain.endpoints import CHAT, EMBEDDINGS
from gateway.proxy import reply as gateway_reply
from tests.apps.dialects.stage import (
    HELLO,
    LAST,
    LEAK,
    ROLE,
    Stage,
    answers,
    says,
)
from tests.scripted import PATIENCE, SSE_HEAD, RawReply, Turn, chunked, raw_post, request_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PATH = "/v1/responses"


async def ask(stage: Stage, model: str = "chat", *, stream: bool = True, **more: Any) -> RawReply:
    body = {"model": model, "input": "hi", "stream": stream, **more}
    return await raw_post(stage.gateway.url, body, PATH, ["x-request-id: my-id"])


def told(reply: RawReply) -> list[dict[str, Any]]:
    data = [event.partition(b"\ndata: ")[2] for event in reply.events if not event.startswith(b":")]
    found = [json.loads(one) for one in data]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def kinds(reply: RawReply) -> list[str]:
    return [event["type"].removeprefix("response.") for event in told(reply)]


async def resets(turn: Turn) -> None:
    turn.reset()


@pytest.mark.parametrize("path", [PATH, "/responses"])
async def test_a_backend_is_asked_as_a_chat(stage: Stage, path: str) -> None:
    stage.s.play(answers({"content": "hello"}))
    body = {"model": "chat", "input": "hi", "instructions": "Be short.", "max_output_tokens": 50, "store": True}
    reply = await raw_post(stage.gateway.url, body, path, ["x-request-id: my-id"])
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "s")
    assert (reply.json["id"], reply.json["model"], reply.json["store"]) == ("resp_my-id", "chat", False)
    assert reply.json["output"][0]["content"][0]["text"] == "hello"
    assert reply.json["usage"]["input_tokens_details"] == {"cached_tokens": 60}
    assert reply.json["usage"]["total_tokens"] == 107


async def test_a_leaked_call_is_mended(stage: Stage) -> None:
    stage.s.play(answers({"content": LEAK}))
    whole = await ask(stage, stream=False, tools=[TOOL])
    stage.s.play(says(ROLE, *(HELLO.replace(b"hello", json.dumps(LEAK)[1:-1].encode()),), *LAST))
    streamed = await ask(stage, tools=[TOOL])
    for response in (whole.json, told(streamed)[-1]["response"]):
        (call,) = response["output"]
        assert (call["type"], call["name"]) == ("function_call", "get_weather")
        assert json.loads(call["arguments"]) == {"city": "Oslo"}
        assert response["status"] == "completed"


async def test_the_next_backend_serves_where_the_first_one_fails(stage: Stage) -> None:
    stage.s.play(resets)
    stage.t.play(says(ROLE, HELLO, *LAST))
    reply = await ask(stage, "pair")
    assert reply.headers["x-gateway-backend"] == "t"
    assert (kinds(reply)[-1], reply.ended) == ("completed", True)
    assert b"[DONE]" not in reply.body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_error_before_anything_was_sent_is_that_of_a_chat(stage: Stage, stream: bool) -> None:
    stage.s.play(resets)
    reply = await ask(stage, stream=stream)
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")


async def test_a_stream_that_breaks_is_told_and_cut(stage: Stage) -> None:
    async def breaks(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO, HELLO))
        turn.reset()

    stage.s.play(breaks)
    reply = await ask(stage)
    assert kinds(reply)[-2:] == ["error", "failed"]
    assert told(reply)[-1]["response"]["error"]["code"] == "stream_interrupted"
    assert not reply.ended


async def test_while_it_waits_the_response_has_begun_and_keepalives_follow(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_reply, "HEARTBEAT", 0.05)

    async def waits(turn: Turn) -> None:
        await stage.until_committed()
        (request,) = stage.gateway.requests()
        first = request.timer.beat_at
        await stage.gateway.until(lambda: request.timer.beat_at > first)
        await turn.stream(ROLE, HELLO, *LAST)

    stage.s.play(waits)
    reply = await ask(stage, "slow")
    beats = kinds(reply).count("keepalive")
    assert beats >= 1
    assert kinds(reply)[: beats + 2] == ["created", "in_progress"] + ["keepalive"] * beats
    assert (kinds(reply)[-1], reply.ended) == ("completed", True)
    assert told(reply)[-1]["response"]["model"] == "slow"


async def test_a_body_that_is_no_request_is_refused_and_no_backend_is_asked(stage: Stage) -> None:
    reply = await ask(stage, previous_response_id="resp_1")
    assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
    assert reply.json["error"]["param"] == "previous_response_id"


async def test_nothing_is_kept_that_could_be_asked_for(stage: Stage) -> None:
    async with httpx.AsyncClient(base_url=stage.gateway.url, trust_env=False, timeout=PATIENCE) as client:
        assert (await client.get(PATH)).status_code == 405
        for method, path in (("GET", "/resp_1"), ("DELETE", "/resp_1"), ("POST", "/resp_1/cancel")):
            assert (await client.request(method, PATH + path)).status_code == 404


async def test_a_client_that_leaves_is_noticed_by_the_backend(stage: Stage) -> None:
    lost = asyncio.Event()

    async def watches(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO))
        await turn.until_lost()
        lost.set()

    stage.s.play(watches)
    host, _, port = stage.gateway.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request_bytes(stage.gateway.url, {"model": "chat", "input": "hi", "stream": True}, PATH))
    await reader.readuntil(b"output_text.delta")
    writer.close()
    async with asyncio.timeout(10):
        await lost.wait()


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"input": "hi"}, EMBEDDINGS),
        ({"input": ["a", "b"]}, EMBEDDINGS),
        ({"input": "hi", "instructions": "Be short."}, CHAT),
        ({"input": [{"role": "user", "content": "hi"}]}, CHAT),
    ],
)
async def test_a_plan_is_explained_for_a_responses_body_too(body: dict[str, Any], endpoint: Any) -> None:
    assert read_request("chat", body).endpoint is endpoint


async def test_a_conversation_is_compacted_at_an_endpoint_of_its_own(stage: Stage) -> None:
    stage.s.play(answers({"content": "They count moons.", "reasoning": "I sum up."}))
    given = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "Twelve."}]
    body = {"model": "chat", "input": given, "tools": [TOOL], "text": {"format": {"type": "json_object"}}}
    answer = (await raw_post(stage.gateway.url, body, f"{PATH}/compact")).json
    assert answer["object"] == "response.compaction"
    user, item = answer["output"]
    assert (user["role"], user["content"], item["type"]) == ("user", "Count.", "compaction")
    assert item["encrypted_content"] == "summary:They count moons."
    asked = stage.s.turns[-1].json
    assert (asked["tool_choice"], "response_format" in asked, asked["messages"][0]) == ("none", False, given[0])
