"""The simulated Ollama from 0.30 on: models with the chat template of their file, and models with a Go template, do
differently in nearly every edge. As captured of 0.33."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from simulator import SimOllama
from tests.simulator.test_ollama import WEATHER, lines
from tests.simulator.wire import ask, chat

NATIVE, GO = "native", "gothink"
LONG = "x" * 40_000


@asynccontextmanager
async def serving(**more: Any) -> AsyncIterator[tuple[SimOllama, str]]:
    sim = SimOllama(models=[NATIVE, GO], native=[NATIVE], thinks=[], version="0.33.0", **more)
    async with sim.serve() as url:
        yield sim, url


def body(model: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": model, **chat(text), "stream": False, **more}


async def test_one_message_over_the_window_is_refused_or_cut_to_half_of_it() -> None:
    async with serving() as (_, url):
        native = await ask(url, "/v1/chat/completions", body(NATIVE, LONG))
        go = await ask(url, "/v1/chat/completions", body(GO, LONG))
    assert native.status == 400
    assert json.loads(native.json["error"]["message"])["error"]["type"] == "exceed_context_size_error"
    assert (go.status, go.json["usage"]["prompt_tokens"]) == (200, 2050)


@pytest.mark.parametrize("model", [NATIVE, GO])
async def test_of_many_messages_over_the_window_the_oldest_are_dropped_but_no_system_message(model: str) -> None:
    system, last = {"role": "system", "content": "s" * 4000}, {"role": "user", "content": "hi"}
    old = [{"role": "user", "content": "x" * 4000}, {"role": "assistant", "content": "ok"}] * 8
    async with serving() as (_, url):
        alone = await ask(url, "/api/chat", body(model, messages=[system, last]))
        cut = await ask(url, "/api/chat", body(model, messages=[system, *old, last]))
        refused = await ask(url, "/api/chat", body(model, messages=[system, *old, last], truncate=False))
    assert alone.json["prompt_eval_count"] < cut.json["prompt_eval_count"] < 4096
    assert refused.status == 400
    assert "exceed_context_size_error" in refused.json["error"]


async def test_a_call_that_the_limit_cuts_off_is_a_500_or_a_length() -> None:
    more: dict[str, Any] = {"tools": [WEATHER], "options": {"num_predict": 12}}
    async with serving() as (_, url):
        native = await ask(url, "/api/chat", body(NATIVE, "the weather in Rome", **more))
        streamed = await ask(
            url, "/api/chat", body(NATIVE, "the weather in Rome", **more, stream=True) | {"stream": True}
        )
        go = await ask(url, "/api/chat", body(GO, "the weather in Rome", **more))
    problem = 'llama-server returned invalid tool call arguments for "get_weather": unexpected end of JSON input'
    assert (native.status, native.json) == (500, {"error": problem})
    assert lines(streamed)[-1] == {"error": problem}
    assert (go.status, go.json["done_reason"]) == (200, "length")
    assert "tool_calls" not in go.json["message"]


async def test_an_output_that_the_parser_cannot_read_is_a_500_of_the_files_template_alone() -> None:
    async with serving() as (sim, url):
        sim.fault("wrong_parser")
        native, go = [await ask(url, "/api/chat", body(model)) for model in (NATIVE, GO)]
    assert (native.status, "does not match the expected peg-native format" in native.json["error"]) == (500, True)
    assert go.status == 200


async def test_one_token_again_and_again_ends_without_done_under_a_go_template_alone() -> None:
    async with serving() as (sim, url):
        sim.fault("repetition")
        whole = await ask(url, "/api/chat", body(GO))
        streamed = lines(await ask(url, "/api/chat", {**body(GO), "stream": True}))
        native = await ask(url, "/api/chat", body(NATIVE))
    assert (whole.json["done"], whole.json["message"]["content"]) == (False, " again" * 30)
    assert (len(streamed), any(line["done"] for line in streamed)) == (30, False)
    assert (native.json["done_reason"], native.json["eval_count"]) == ("length", 64)


async def test_a_picture_is_refused_by_a_model_without_eyes() -> None:
    seen = {"messages": [{"role": "user", "content": "what is it", "images": ["aGk="]}]}
    async with serving() as (_, url):
        native, go = [await ask(url, "/api/chat", body(model) | seen) for model in (NATIVE, GO)]
    assert (native.status, "image input is not supported" in native.json["error"]) == (500, True)
    assert (go.status, "does not support multimodal requests" in go.json["error"]) == (400, True)


async def test_the_thoughts_of_the_history_are_in_the_prompt_of_a_go_template_alone() -> None:
    messages = [{"role": "assistant", "content": "", "thinking": "a thought " * 50}, {"role": "user", "content": "hi"}]
    async with serving() as (_, url):
        native, go = [await ask(url, "/api/chat", body(model, messages=messages)) for model in (NATIVE, GO)]
    assert go.json["prompt_eval_count"] > native.json["prompt_eval_count"] + 50


async def test_a_streamed_call_of_its_v1_ends_with_tool_calls() -> None:
    async with serving() as (_, url):
        asked = {**body(NATIVE, "the weather in Rome", tools=[WEATHER]), "stream": True}
        reply = await ask(url, "/v1/chat/completions", asked)
    assert reply.events[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_capabilities_are_all_told_by_show_but_not_by_the_list() -> None:
    async with serving() as (_, url):
        listed = {m["name"]: m["capabilities"] for m in (await ask(url, "/api/tags")).json["models"]}
        shown = (await ask(url, "/api/show", {"model": NATIVE})).json["capabilities"]
    assert listed == {NATIVE: ["completion"], GO: ["completion", "tools"]}
    assert shown == ["completion", "tools"]


async def test_a_chat_model_embeds_nothing() -> None:
    async with serving(embeds=[]) as (_, url):
        reply = await ask(url, "/api/embed", {"model": GO, "input": "a"})
        unknown = await ask(url, "/api/embed", {"model": "x", "input": "a"})
    assert (reply.status, "does not support embeddings" in reply.json["error"]) == (501, True)
    assert unknown.json == {"error": 'model "x" not found, try pulling it first'}
