"""Requests of Ollama's API through the gateway."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.apps.dialects.stage import (
    HELLO,
    LAST,
    ROLE,
    Stage,
    answers,
    says,
)
from tests.scripted import RawReply, Turn, json_answer, raw_post

pytestmark = pytest.mark.asyncio(loop_scope="module")

HI = {"role": "user", "content": "hi"}


async def ask(stage: Stage, path: str = "/api/chat", model: str = "chat:latest", **more: Any) -> RawReply:
    asked = {"messages": [HI]} if path == "/api/chat" else {}
    return await raw_post(stage.gateway.url, {"model": model, **asked, **more}, path)


def lines(reply: RawReply) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reply.body.splitlines()]


async def test_a_chat_streams_lines(stage: Stage) -> None:
    stage.s.play(says(ROLE, HELLO, *LAST))
    reply = await ask(stage)
    assert (reply.status, reply.headers["content-type"], reply.ended) == (200, "application/x-ndjson", True)
    assert reply.headers["x-gateway-backend"] == "s"
    first, last = lines(reply)
    assert (first["model"], first["message"], first["done"]) == (
        "chat:latest",
        {"role": "assistant", "content": "hello"},
        False,
    )
    assert (last["done"], last["prompt_eval_count"], last["eval_count"]) == (True, 100, 7)


async def test_a_whole_answer(stage: Stage) -> None:
    stage.s.play(answers({"content": "hello"}))
    reply = await ask(stage, stream=False, template="x")
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-gateway-left-out"] == "template"
    assert reply.json["message"]["content"] == "hello"


async def test_a_generation_and_a_raw_one(stage: Stage) -> None:
    stage.s.play(answers({"content": "hello"}))
    assert (await ask(stage, "/api/generate", prompt="hi", stream=False)).json["response"] == "hello"
    assert stage.s.turns[-1].path == "/v1/chat/completions"

    async def completes(turn: Turn) -> None:
        assert turn.path == "/v1/completions"
        assert turn.json["prompt"] == "def f("
        choice = {"index": 0, "text": "x)", "finish_reason": "stop"}
        await turn.send(json_answer({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}))

    stage.s.play(completes)
    assert (await ask(stage, "/api/generate", prompt="def f(", raw=True, stream=False)).json["response"] == "x)"


@pytest.mark.parametrize(("path", "told"), [("/api/embed", "embeddings"), ("/api/embeddings", "embedding")])
async def test_embeddings(stage: Stage, path: str, told: str) -> None:
    async def embeds(turn: Turn) -> None:
        assert turn.path == "/v1/embeddings"
        vector = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
        await turn.send(json_answer({"object": "list", "data": [vector], "usage": {"prompt_tokens": 1}}))

    stage.s.play(embeds)
    reply = await ask(stage, path, **({"input": "a"} if path == "/api/embed" else {"prompt": "a"}))
    assert reply.json[told] == ([[0.5, 0.25]] if told == "embeddings" else [0.5, 0.25])
    figures = {name for name in reply.json if name.endswith(("_duration", "_count"))}
    assert figures == ({"total_duration", "load_duration", "prompt_eval_count"} if told == "embeddings" else set())


async def test_a_body_of_a_program_is_json_whatever_its_type_says(stage: Stage) -> None:
    """As `curl -d` sends it in Ollama's own pages; a page of another site cannot leave `Origin` out."""
    stage.s.play(answers({"content": "hello"}))
    body = json.dumps({"model": "chat", "messages": [HI], "stream": False})
    form = {"content-type": "application/x-www-form-urlencoded"}
    client = stage.gateway.client
    assert (await client.post("/api/chat", content=body, headers=form)).json()["message"]["content"] == "hello"
    page = await client.post("/api/chat", content=body, headers={**form, "origin": stage.gateway.url})
    assert (page.status_code, page.json()["code"]) == (415, "unsupported_media_type")
    page = await client.post("/api/chat", content=body, headers={**form, "sec-fetch-site": "none"})
    assert page.status_code == 415
    other = await client.post("/api/chat", content=body, headers={**form, "origin": "https://elsewhere.example"})
    assert other.status_code == 403
    assert (await client.post("/v1/chat/completions", content=body, headers=form)).status_code == 415


async def test_a_request_without_a_prompt_asks_no_backend(stage: Stage) -> None:
    before = len(stage.s.turns)
    reply = await ask(stage, "/api/generate", keep_alive=0)
    assert (reply.status, reply.json["done_reason"], reply.json["response"]) == (200, "unload", "")
    assert (await ask(stage, messages=[])).json["done_reason"] == "load"
    assert (await ask(stage, "/api/generate", model="nobody")).status == 404
    assert len(stage.s.turns) == before


async def test_errors_are_ollamas(stage: Stage) -> None:
    reply = await ask(stage, model="nobody")
    assert (reply.status, reply.json["code"]) == (404, "model_not_found")
    assert reply.json["error"].startswith("The model 'nobody' does not exist")
    assert (await ask(stage, messages="x")).json["code"] == "invalid_request_body"


async def test_a_stream_that_breaks_ends_with_an_error_line_and_a_cut(stage: Stage) -> None:
    async def breaks(turn: Turn) -> None:
        await turn.stream(ROLE, HELLO, end=False)
        turn.reset()

    stage.s.play(breaks)
    reply = await ask(stage)
    assert not reply.ended
    assert lines(reply)[-1]["code"] == "stream_interrupted"


async def test_a_stream_that_waits_gets_empty_lines(stage: Stage) -> None:
    go_on = asyncio.Event()

    async def waits(turn: Turn) -> None:
        await go_on.wait()
        await turn.stream(ROLE, HELLO, *LAST)

    stage.s.play(waits)
    asked = asyncio.create_task(ask(stage, model="slow"))
    await stage.until_committed()
    go_on.set()
    assert [one["message"]["content"] for one in lines(await asked)] == ["", "hello", ""]
