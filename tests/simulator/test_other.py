"""The simulated mlx_lm.server and transformers serve do what the real ones were seen to do."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from simulator import SimOther
from tests.simulator.wire import ask, chat

QUIET: Any = {"chat_template_kwargs": {"enable_thinking": False}}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CHAT = "/v1/chat/completions"
KINDS = pytest.mark.parametrize("kind", ["mlx", "transformers"])


def script(text: str, **more: Any) -> dict[str, Any]:
    return {**chat("hi"), "vllm_xargs": {"script": text}, **QUIET, **more}


async def test_mlx_removes_a_stop_string_and_goes_on() -> None:
    async with SimOther("mlx").serve() as url:
        reply = await ask(url, CHAT, script("one two three", stop=["two"]))
    assert reply.json["choices"][0]["message"]["content"] == "one  three"


async def test_transformers_keeps_a_stop_string() -> None:
    async with SimOther("transformers").serve() as url:
        reply = await ask(url, CHAT, script("one two three", stop="two"))
    assert reply.json["choices"][0]["message"]["content"] == "one two"


@KINDS
async def test_a_call_is_made_though_none_is_wanted(kind: Any) -> None:
    async with SimOther(kind).serve() as url:
        body = {**chat("weather in Oslo"), "tools": [WEATHER], "tool_choice": "none"}
        message = (await ask(url, CHAT, body)).json["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}


@pytest.mark.parametrize(("kind", "field"), [("mlx", "reasoning"), ("transformers", "reasoning_content")])
async def test_thoughts_have_a_field_of_their_own(kind: Any, field: str) -> None:
    async with SimOther(kind).serve() as url:
        whole = await ask(url, CHAT, chat("12*17"))
        stream = await ask(url, CHAT, {**chat("12*17"), "stream": True})
    deltas = [c["delta"] for e in stream.events if e != "[DONE]" for c in e["choices"]]
    message = whole.json["choices"][0]["message"]
    assert message[field] == "".join(d.get(field, "") for d in deltas)
    assert message["content"].strip() == "12*17 is 204."
    assert message["content"] == "".join(d.get("content", "") for d in deltas)


async def test_the_usage_of_a_stream_of_mlx_is_asked_for_and_it_ends_with_done() -> None:
    async with SimOther("mlx").serve() as url:
        silent = (await ask(url, CHAT, script("hi", stream=True))).events
        asked = (await ask(url, CHAT, script("hi", stream=True, stream_options={"include_usage": True}))).events
    assert not any("usage" in event for event in silent[:-1])
    assert asked[-2]["choices"] == []
    assert asked[-2]["usage"]["completion_tokens"] == 2
    assert (silent[-1], asked[-1]) == ("[DONE]", "[DONE]")
    assert {c["delta"]["role"] for e in silent[:-1] for c in e["choices"]} == {"assistant"}


async def test_transformers_always_tells_the_usage_and_has_no_done() -> None:
    async with SimOther("transformers").serve() as url:
        found = (await ask(url, CHAT, script("hi", stream=True))).events
    assert found[-1]["usage"]["completion_tokens"] == 2
    assert found[-1]["choices"][0]["finish_reason"] == "stop"
    assert "finish_reason" not in found[0]["choices"][0]


@pytest.mark.parametrize(("kind", "limit"), [("mlx", 512), ("transformers", 1024)])
async def test_an_answer_without_a_limit_has_one(kind: Any, limit: int) -> None:
    async with SimOther(kind).serve() as url:
        reply = await ask(url, CHAT, {**chat("write 5000 words"), **QUIET})
    assert reply.json["usage"]["completion_tokens"] == limit
    assert reply.json["choices"][0]["finish_reason"] == "length"


async def test_a_list_of_prompts_ends_the_generation_thread_of_mlx() -> None:
    async with SimOther("mlx").serve() as url, httpx.AsyncClient() as client:
        first = await ask(url, "/v1/completions", {"prompt": ["a", "b"]})
        then = await ask(url, CHAT, chat("hi"))
        health, models = await client.get(url + "/health"), await client.get(url + "/v1/models")
    for reply in (first, then):
        assert (reply.status, reply.json) == (404, {"error": "generation thread died"})
    assert (health.status_code, models.status_code) == (503, 200)


async def test_another_model_of_the_cache_is_loaded_by_a_request() -> None:
    sim = SimOther("mlx", model="one", cached=["two", "three"])
    async with sim.serve() as url, httpx.AsyncClient() as client:
        lists = [(await client.get(url + "/v1/models")).json()["data"] for _ in range(20)]
        assert len({tuple(card["id"] for card in cards) for cards in lists}) > 1  # in random order
        await ask(url, CHAT, {**chat("hi"), "model": "default_model"})
        assert sim.loaded == "one"
        await ask(url, CHAT, {**chat("hi"), "model": "two"})
        assert sim.loaded == "two"
        assert (await ask(url, CHAT, {**chat("hi"), "model": "four"})).status == 404


@pytest.mark.parametrize(
    ("more", "problem"), [({"max_tokens": 0}, "max_new_tokens"), ({"logit_bias": {"5": 1}}, "bias")]
)
async def test_errors_of_transformers_that_are_the_clients_fault(more: dict[str, Any], problem: str) -> None:
    async with SimOther("transformers").serve() as url:
        whole = await ask(url, CHAT, {**chat("hi"), **more})
        stream = await ask(url, CHAT, {**chat("hi"), **more, "stream": True})
    assert whole.status == 500
    assert stream.status == 200
    assert problem in stream.events[-1]["error"]


@KINDS
async def test_only_a_stream_ends_when_its_client_leaves(kind: Any) -> None:
    sim = SimOther(kind, decode=50)
    async with sim.serve() as url, httpx.AsyncClient() as client:
        for number, stream in enumerate([True, False]):
            body = {**chat("write 400 words"), "stream": stream}
            request = asyncio.create_task(client.post(url + CHAT, json=body))
            await sim.wait_for(lambda: sim.engine.running and sim.engine.running[0].made)
            request.cancel()
            await sim.wait_aborted(number + 1)
            if stream:
                await sim.wait_for(lambda: not sim.engine.busy)
        assert sim.engine.busy
