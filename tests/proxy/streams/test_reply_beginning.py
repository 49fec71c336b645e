"""How a stream begins: a status that goes out before the content, heartbeats, thoughts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.proxy import reply as gateway_reply
from tests.proxy.streams.stage import DONE, GOOD, HELLO, ROLE, STOP, THOUGHT, Stage, asking, renamed, says, sends
from tests.raw_client import raw_client
from tests.scripted import END, SSE_HEAD, Turn, chunked, read_reply, request_bytes
from tests.scripted import answer as http_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")


# -- the status goes out before the content ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "said"),
    [("/v1/chat/completions", {"delta": {}}), ("/v1/completions", {"text": ""})],
    ids=["chat", "completions"],
)
async def test_a_backend_that_takes_its_time_is_bridged_with_heartbeats(
    stage: Stage, path: str, said: dict[str, Any]
) -> None:
    async def script(turn: Turn) -> None:
        await stage.until_beating()
        if path == "/v1/completions":
            text = b'data: {"id":"cmpl-9","created":9,"model":"served/model","choices":[{"index":0,"text":"hello",'
            await turn.stream(text + b'"finish_reason":"stop"}]}\n\n', DONE)
        else:
            await turn.stream(ROLE, HELLO, STOP, DONE)

    stage.s.play(script)
    reply = await stage.ask("slow", path, prompt="x")
    assert (reply.status, reply.headers["x-gateway-committed"]) == (200, "early")
    assert "x-gateway-backend" not in reply.headers
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    beat = reply.chunks[0]
    kind, prefix = ("chat.completion.chunk", "chatcmpl-") if "chat" in path else ("text_completion", "cmpl-")
    assert beat == {
        "id": prefix + reply.headers["x-request-id"],
        "object": kind,
        "created": beat["created"],
        "model": "slow",
        "choices": [{"index": 0, **said, "finish_reason": None}],
    }
    assert reply.events[1] == b": x-gateway backend=late; attempts=1; queue-ms=0"
    assert reply.text == "hello"
    assert {(c["id"], c["created"], c["model"]) for c in reply.chunks} == {(beat["id"], beat["created"], "slow")}
    assert reply.ended
    assert reply.body.endswith(DONE)


async def test_after_an_early_status_another_backend_still_takes_over(stage: Stage) -> None:
    async def script(turn: Turn) -> None:
        await stage.until_beating()
        turn.reset()

    stage.s.play(script)
    stage.t.play(GOOD)
    reply = await stage.ask("slow")
    assert reply.events[1] == b": x-gateway backend=t; attempts=2; queue-ms=0; fallback=failed"
    assert (reply.text, reply.ended) == ("hello", True)


async def test_after_an_early_status_the_final_failure_is_told_in_the_stream(stage: Stage) -> None:
    async def script(turn: Turn) -> None:
        await stage.until_beating()
        turn.reset()

    async def refuse(turn: Turn) -> None:
        await turn.send(http_answer(b"{}", "500 Internal Server Error"))

    stage.s.play(script)
    stage.t.play(refuse)
    reply = await stage.ask("slow")
    assert reply.status == 200
    assert reply.chunks[-1]["error"]["code"] == "upstream_error"
    assert not reply.ended
    assert DONE not in reply.body


async def test_a_quick_answer_is_not_committed_early(stage: Stage) -> None:
    stage.s.play(GOOD)
    reply = await stage.ask("slow")
    assert reply.headers["x-gateway-backend"] == "late"
    assert reply.body == renamed(ROLE, HELLO, STOP, DONE, model=b"slow")


async def test_without_stream_nothing_goes_out_early(stage: Stage) -> None:
    """Another request, for a stream, comes later; when that has its status, `hold` is over for the first one too."""
    arrived, committed = asyncio.Event(), asyncio.Event()

    async def script(turn: Turn) -> None:
        if turn.json["stream"]:
            await stage.until_beating()
            committed.set()
        else:
            arrived.set()
            await committed.wait()
        turn.reset()

    async def refuse(turn: Turn) -> None:
        await turn.send(http_answer(b"{}", "500 Internal Server Error"))

    stage.s.play(script, to_all=True)
    stage.t.play(refuse, to_all=True)
    whole = asyncio.create_task(stage.ask("slow", stream=False))
    await arrived.wait()
    assert (await stage.ask("slow")).status == 200
    assert (await whole).status == 502


async def test_heartbeats_go_on_while_a_backend_is_silent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_reply, "HEARTBEAT", 0.05)
    two_came = asyncio.Event()

    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO))
        await two_came.wait()
        await turn.send(chunked(STOP, DONE) + END)

    stage.s.play(script)
    async with raw_client(stage.gateway.url) as client:
        await client.send(request_bytes(stage.gateway.url, asking()))
        for _ in range(2):
            await client.until(b'"delta":{},"finish_reason":null')
        two_came.set()
        await client.rest()
    reply = read_reply(client.seen)
    beats = [c for c in reply.chunks if c["choices"][0]["delta"] == {} and c["choices"][0]["finish_reason"] is None]
    assert 2 <= len(beats) <= 5
    assert {c["id"] for c in reply.chunks} == {"up-1"}


# -- reasoning --------------------------------------------------------------------------------------------------------


async def test_thoughts_stream_before_content_and_another_backend_may_go_on(stage: Stage) -> None:
    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, THOUGHT))
        await stage.gateway.until(
            lambda: any(r.reply is not None and r.reply.committed for r in stage.gateway.requests())
        )
        turn.reset()

    other = [e.replace(b"up-1", b"up-9").replace(b'"created":2', b'"created":7') for e in (ROLE, THOUGHT, HELLO, STOP)]
    stage.s.play(script)
    stage.t.play(says(*other, DONE))
    reply = await stage.ask("pair")
    assert reply.headers["x-gateway-backend"] == "s"
    assert b": x-gateway backend=t; attempts=2; queue-ms=0; fallback=failed" in reply.events
    assert [c["choices"][0]["delta"] for c in reply.chunks] == [
        {"role": "assistant", "content": ""},
        {"reasoning": "hm"},
        {"reasoning": "hm"},
        {"content": "hello"},
        {},
    ]
    assert {(c["id"], c["created"], c["model"]) for c in reply.chunks} == {("up-1", 2, "pair")}
    assert reply.ended


async def test_thoughts_that_break_for_good_are_told_in_the_stream(stage: Stage) -> None:
    stage.s.play(sends(ROLE, THOUGHT))
    reply = await stage.ask()
    assert [c.get("error", {}).get("code") for c in reply.chunks] == [None, None, "upstream_error"]
    assert not reply.ended
    assert DONE not in reply.body


async def test_thoughts_alone_are_an_answer(stage: Stage) -> None:
    stage.s.play(says(ROLE, THOUGHT, STOP, DONE))
    assert (await stage.ask("pair")).body == renamed(ROLE, THOUGHT, STOP, DONE, model=b"pair")
