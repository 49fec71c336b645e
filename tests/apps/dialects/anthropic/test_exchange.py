"""Messages requests through the gateway: what goes up, what comes down, and what a client sees when a backend fails."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.proxy import reply as gateway_reply
from tests.apps.dialects.stage import (
    HELLO,
    LAST,
    LEAK,
    ROLE,
    THOUGHT,
    Stage,
    answers,
    chunk,
    says,
)
from tests.scripted import (
    SSE_HEAD,
    RawReply,
    Turn,
    chunked,
    json_answer,
    raw_post,
    request_bytes,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOL = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
PING = b'event: ping\ndata: {"type":"ping"}'


def told(reply: RawReply) -> list[Any]:
    """The data of a stream's events; each event has the name of its type."""
    found = []
    for event in reply.events:
        name, _, data = event.partition(b"\ndata: ")
        if not event.startswith(b":"):
            found.append(json.loads(data))
            assert name == b"event: " + found[-1]["type"].encode()
    return found


def kinds(reply: RawReply) -> list[str]:
    return [event["type"] for event in told(reply)]


def said(reply: RawReply) -> str:
    deltas = [event["delta"] for event in told(reply) if event["type"] == "content_block_delta"]
    return "".join(delta.get("text", "") for delta in deltas)


# -- answers ----------------------------------------------------------------------------------------------------------


async def test_a_stream_is_a_message_from_its_start_to_its_stop(stage: Stage) -> None:
    stage.s.play(says(ROLE, THOUGHT, HELLO, *LAST))
    reply = await stage.ask()
    assert kinds(reply) == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_stop") * 2,
        "message_delta",
        "message_stop",
    ]
    start, *_, end, _ = told(reply)
    assert (start["message"]["id"], start["message"]["model"]) == ("msg_my-id", "chat")
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end["usage"] == {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 7}
    assert reply.ended
    assert reply.headers["request-id"] == reply.headers["x-request-id"] == "my-id"
    assert reply.headers["content-type"].startswith("text/event-stream")


async def test_an_answer_in_one_piece_is_a_message(stage: Stage) -> None:
    stage.s.play(answers({"content": "hello", "reasoning": "hm"}))
    reply = await stage.ask(stream=False)
    assert reply.ended
    assert reply.json["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "hello"},
    ]
    assert (reply.json["model"], reply.json["stop_reason"]) == ("chat", "end_turn")
    assert reply.headers["x-gateway-backend"] == "s"


async def test_the_backend_is_asked_for_a_chat(stage: Stage) -> None:
    stage.s.play(says(ROLE, HELLO, *LAST))
    await stage.ask(system="Be brief.", tools=[TOOL], tool_choice={"type": "auto"}, stop_sequences=["END"])
    (turn,) = stage.s.turns
    assert turn.json == {
        "model": "served/model",
        "max_tokens": 100,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": TOOL["input_schema"]}}],
        "tool_choice": "auto",
        "stop": ["END"],
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_call_that_leaks_into_the_text_is_a_tool_use(stage: Stage, stream: bool) -> None:
    stage.s.play(says(ROLE, chunk({"content": LEAK}), *LAST) if stream else answers({"content": LEAK}))
    reply = await stage.ask(stream=stream, tools=[TOOL])
    if stream:
        events = told(reply)
        (block,) = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        given = "".join(e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta")
        stop = events[-2]["delta"]["stop_reason"]
    else:
        (block,) = reply.json["content"]
        given, stop = json.dumps(block["input"]), reply.json["stop_reason"]
        assert reply.headers["x-gateway-mended"] == "tool_calls"
    assert (block["type"], block["name"], json.loads(given)) == ("tool_use", "get_weather", {"city": "Oslo"})
    assert stop == "tool_use"


async def test_it_is_counted_and_logged_under_its_own_name(stage: Stage) -> None:
    labels = {"alias": "chat", "backend": "s", "endpoint": "messages", "code": "200"}
    before = stage.gateway.metric("gateway_requests_total", **labels)
    tokens = {"client": "open", "alias": "chat", "backend": "s", "kind": "prompt"}
    spent = stage.gateway.metric("gateway_tokens_total", **tokens)
    stage.s.play(says(ROLE, HELLO, *LAST))
    await stage.ask()
    await stage.gateway.until(stage.gateway.idle)
    assert stage.gateway.metric("gateway_requests_total", **labels) == before + 1
    assert stage.gateway.metric("gateway_tokens_total", **tokens) > spent


async def test_the_path_is_served_without_v1_too(stage: Stage) -> None:
    stage.s.play(answers({"content": "hello"}))
    body = {"model": "chat", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    assert (await raw_post(stage.gateway.url, body, "/messages")).json["content"][0]["text"] == "hello"


# -- failures ---------------------------------------------------------------------------------------------------------


async def resets(turn: Turn) -> None:
    turn.reset()


async def test_the_next_backend_answers_and_nothing_is_seen_of_the_first(stage: Stage) -> None:
    async def begins(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE))
        turn.reset()

    stage.s.play(begins)
    stage.t.play(says(ROLE, HELLO, *LAST))
    reply = await stage.ask("pair")
    assert reply.headers["x-gateway-fallback"] == "failed"
    assert kinds(reply).count("message_start") == 1
    assert (said(reply), reply.ended) == ("hello", True)


async def test_another_backend_goes_on_behind_the_thoughts_of_the_first(stage: Stage) -> None:
    async def thinks(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, THOUGHT))
        await stage.until_committed()
        turn.reset()

    stage.s.play(thinks)
    stage.t.play(says(ROLE, THOUGHT, HELLO, *LAST))
    reply = await stage.ask("pair")
    assert kinds(reply).count("message_start") == 1
    starts = [event["content_block"]["type"] for event in told(reply) if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text"]
    assert any(event.startswith(b": x-gateway backend=t; ") for event in reply.events)
    assert (said(reply), reply.ended) == ("hello", True)


async def test_a_stream_that_breaks_after_content_ends_with_an_error_and_is_cut(stage: Stage) -> None:
    async def breaks(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO))
        await stage.until_committed()
        turn.reset()

    stage.s.play(breaks)
    reply = await stage.ask()
    *_, error = told(reply)
    assert error["error"] == {
        "type": "api_error",
        "message": "upstream connect error: backend reset",
        "code": "stream_interrupted",
    }
    assert error["request_id"] == "my-id"
    assert not reply.ended
    assert STOP not in reply.body


async def test_while_it_waits_the_message_has_begun_and_pings_follow(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_reply, "HEARTBEAT", 0.05)

    async def waits(turn: Turn) -> None:
        await stage.until_committed()
        (request,) = stage.gateway.requests()
        reply = request.reply
        first = request.timer.beat_at
        await stage.gateway.until(lambda: request.timer.beat_at > first)
        assert reply is not None
        assert reply.early
        await turn.stream(ROLE, HELLO, *LAST)

    stage.s.play(waits)
    reply = await stage.ask("slow")
    beats = reply.events.count(PING)
    assert beats >= 1
    assert kinds(reply)[: beats + 1] == ["message_start"] + ["ping"] * beats
    assert told(reply)[0]["message"]["model"] == "slow"
    assert reply.headers["x-gateway-committed"] == "early"
    assert (said(reply), reply.ended) == ("hello", True)


async def test_after_an_early_status_the_final_failure_is_an_error_event(stage: Stage) -> None:
    async def late_reset(turn: Turn) -> None:
        await stage.until_committed()
        turn.reset()

    stage.s.play(late_reset)
    stage.t.play(resets)
    reply = await stage.ask("slow")
    assert reply.status == 200
    assert told(reply)[-1]["error"]["code"] == "upstream_error"
    assert not reply.ended


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_error_before_anything_was_sent_has_its_status_and_anthropics_envelope(
    stage: Stage, stream: bool
) -> None:
    stage.s.play(resets, to_all=True)
    stage.t.play(resets, to_all=True)
    reply = await stage.ask("pair", stream=stream)
    assert (reply.status, reply.json["type"], reply.json["error"]["type"]) == (502, "error", "api_error")
    assert reply.json["error"]["code"] == "upstream_error"
    assert reply.json["request_id"] == reply.headers["request-id"] == "my-id"
    assert reply.headers["x-gateway-attempts"] == "2"


async def test_a_backends_own_refusal_is_passed_on(stage: Stage) -> None:
    async def refuses(turn: Turn) -> None:
        said = {"error": {"message": "top_p must be in (0, 1]", "type": "BadRequestError", "param": None, "code": 400}}
        await turn.send(json_answer(said, "400 Bad Request"))

    stage.s.play(refuses)
    reply = await stage.ask(top_p=7)
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert reply.json["error"]["message"] == "top_p must be in (0, 1]"


async def test_a_body_that_is_no_request_is_refused_and_no_backend_is_asked(stage: Stage) -> None:
    reply = await stage.ask(messages=[{"role": "user", "content": [{"type": "text"}]}])
    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request_body")
    assert "`messages.0.content.0.text`" in reply.json["error"]["message"]


async def test_a_client_that_leaves_is_noticed_by_the_backend(stage: Stage) -> None:

    lost = asyncio.Event()

    async def watches(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO))
        await turn.until_lost()
        lost.set()

    stage.s.play(watches)
    body = {"model": "chat", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    host, _, port = stage.gateway.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request_bytes(stage.gateway.url, body, "/v1/messages"))
    await reader.readuntil(b"text_delta")
    writer.close()
    async with asyncio.timeout(10):
        await lost.wait()


async def test_a_client_is_told_where_asking_again_cannot_help(stage: Stage) -> None:
    """Claude Code repeats even a wrong key for minutes, unless it is told not to."""
    assert (await stage.ask("nobody")).headers["x-should-retry"] == "false"
    stage.s.play(resets)
    assert "x-should-retry" not in (await stage.ask()).headers
