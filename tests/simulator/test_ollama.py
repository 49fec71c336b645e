"""The simulated Ollama: its own API, what it loses silently, and its lossy /v1."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from simulator import SimOllama
from tests.simulator.wire import Reply, ask, chat

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
MODEL = "qwen3:8b"


def body(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, **chat(text), **more}


def lines(reply: Reply) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reply.body.splitlines()]


async def test_a_chat_streams_lines_of_json_and_ends_with_its_counters() -> None:
    async with SimOllama().serve() as url:
        reply = await ask(url, "/api/chat", body("12*17"))
    assert reply.header("content-type") == "application/x-ndjson"
    *parts, last = lines(reply)
    assert "".join(p["message"].get("thinking", "") for p in parts).strip()
    assert "".join(p["message"]["content"] for p in parts) == "12*17 is 204."
    assert [p["done"] for p in parts] == [False] * len(parts)
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert list(last) == [
        *("model", "created_at", "message", "done", "done_reason", "total_duration", "load_duration"),
        *("prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"),
    ]


async def test_think_false_leaves_the_thoughts_out() -> None:
    async with SimOllama().serve() as url:
        reply = await ask(url, "/api/chat", body("12*17", think=False, stream=False))
    assert reply.json["message"] == {"role": "assistant", "content": "12*17 is 204."}


async def test_a_prompt_over_the_window_is_cut_without_a_word() -> None:
    async with SimOllama(context=4096).serve() as url:
        long = "x" * 40_000
        usual = await ask(url, "/api/chat", body(long, stream=False))
        asked = await ask(url, "/api/chat", body(long, stream=False, options={"num_ctx": 32768}))
        lossy = await ask(url, "/v1/chat/completions", body(long, options={"num_ctx": 32768}))
    assert (usual.status, usual.json["prompt_eval_count"]) == (200, 4096)
    assert asked.json["prompt_eval_count"] > 10_000
    assert lossy.json["usage"]["prompt_tokens"] == 4096, "/v1 ignores num_ctx"


async def test_calls_have_objects_for_arguments_and_no_ids() -> None:
    async with SimOllama().serve() as url:
        whole = await ask(url, "/api/chat", body("the weather in Rome", tools=[WEATHER], stream=False))
        streamed = await ask(url, "/api/chat", body("the weather in Rome", tools=[WEATHER]))
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    assert whole.json["message"]["tool_calls"] == [call]
    assert [p["message"]["tool_calls"] for p in lines(streamed) if "tool_calls" in p["message"]] == [[call]]


async def test_a_format_is_obeyed() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with SimOllama().serve() as url:
        reply = await ask(url, "/api/chat", body("how many", format=schema, stream=False))
    assert json.loads(reply.json["message"]["content"]) == {"n": 1}


async def test_a_format_with_references_and_alternatives_is_obeyed() -> None:
    item = {"type": "object", "properties": {"unit": {"$ref": "#/$defs/Unit"}}, "required": ["unit"]}
    schema = {"$defs": {"Unit": {"enum": ["m", "ft"]}}, "anyOf": [item, {"type": "null"}]}
    async with SimOllama().serve() as url:
        whole = await ask(url, "/api/chat", body("in ft please", format=schema, think=False, stream=False))
        streamed = await ask(url, "/api/chat", body("in ft please", format=schema, think=False))
    assert json.loads(whole.json["message"]["content"]) == {"unit": "ft"}
    assert "".join(line["message"]["content"] for line in lines(streamed)) == whole.json["message"]["content"]


async def test_of_several_calls_in_a_format_the_one_that_is_spoken_of_is_made() -> None:
    def call(name: str) -> dict[str, Any]:
        properties = {"name": {"const": name}, "parameters": {"type": "object", "properties": {}}}
        return {"type": "object", "properties": properties, "required": ["name", "parameters"]}

    schema = {"anyOf": [call("first"), call("read_file")]}
    async with SimOllama().serve() as url:
        spoken = await ask(url, "/api/chat", body("read file x", format=schema, stream=False))
        other = await ask(url, "/api/chat", body("hello", format=schema, stream=False))
    assert json.loads(spoken.json["message"]["content"]) == {"name": "read_file", "parameters": {}}
    assert json.loads(other.json["message"]["content"]) == {"name": "first", "parameters": {}}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    "schema",
    [{"type": "object", "properties": {"a": {"title": "A"}}}, {"$ref": "#/$defs/a"}, {"anyOf": [{"$ref": "#"}]}],
)
async def test_a_format_that_it_cannot_read_fails_as_a_whole(schema: dict[str, Any], streamed: bool) -> None:
    async with SimOllama().serve() as url:
        reply = await ask(url, "/api/chat", body(format=schema, stream=streamed))
    assert (reply.status, reply.json) == (500, {"error": "invalid JSON schema in format"})


async def test_inputs_are_embedded_as_unit_vectors_that_depend_on_the_text_alone() -> None:
    async with SimOllama().serve() as url:
        reply = await ask(url, "/api/embed", {"model": MODEL, "input": ["one", "two", "one"]})
        single = await ask(url, "/api/embed", {"model": MODEL, "input": "two"})
        short = await ask(url, "/api/embed", {"model": MODEL, "input": "two", "dimensions": 8})
    assert list(reply.json) == ["model", "embeddings", "prompt_eval_count", "total_duration", "load_duration"]
    one, two, again = reply.json["embeddings"]
    assert one == again != two == single.json["embeddings"][0]
    assert len(two) == 64
    (eight,) = short.json["embeddings"]
    assert len(eight) == 8
    for vector in (one, two, eight):
        assert math.isclose(sum(x * x for x in vector), 1.0)
    assert reply.json["prompt_eval_count"] == 3


async def test_an_input_over_the_window_is_cut_or_refused() -> None:
    ask_long = {"model": MODEL, "input": ["short", "x" * 400], "options": {"num_ctx": 50}}
    async with SimOllama().serve() as url:
        cut = await ask(url, "/api/embed", ask_long)
        refused = await ask(url, "/api/embed", {**ask_long, "truncate": False})
    assert (cut.status, cut.json["prompt_eval_count"]) == (200, 52)
    assert (refused.status, refused.json) == (400, {"error": "input exceeds maximum context length"})


async def test_what_cannot_be_embedded() -> None:
    async with SimOllama().serve() as url:
        tokens = await ask(url, "/api/embed", {"model": MODEL, "input": [1, 2]})
        nothing = await ask(url, "/api/embed", {"model": MODEL, "input": ""})
        unknown = await ask(url, "/api/embed", {"model": "x", "input": "a"})
    assert (tokens.status, tokens.json) == (400, {"error": "invalid input type"})
    assert (nothing.status, nothing.json["embeddings"]) == (200, [])
    assert unknown.status == 404


async def test_num_predict_ends_with_length() -> None:
    async with SimOllama().serve() as url:
        reply = await ask(url, "/api/chat", body("write 90 words", stream=False, options={"num_predict": 5}))
    assert (reply.json["done_reason"], reply.json["eval_count"]) == ("length", 5)


async def test_a_model_that_is_not_there_is_a_404_with_a_plain_string() -> None:
    async with SimOllama().serve() as url:
        reply = await ask(url, "/api/chat", {"model": "x", "messages": []})
        lossy = await ask(url, "/v1/chat/completions", {**chat(), "model": "x"})
    assert (reply.status, reply.json) == (404, {"error": "model 'x' not found"})
    assert (lossy.status, lossy.json["error"]["message"]) == (404, "model 'x' not found")


async def test_a_model_is_loaded_on_demand_and_again_for_another_window() -> None:
    ollama = SimOllama(load=5.0, speedup=100.0)
    async with ollama.serve() as url:
        assert (await ask(url, "/api/ps")).json == {"models": []}
        first = await ask(url, "/api/chat", {"model": MODEL, "messages": [], "keep_alive": "10m"})
        assert first.json["done_reason"] == "load"
        assert (await ask(url, "/api/ps")).json["models"][0]["context_length"] == 4096
        warm = await ask(url, "/api/chat", body(stream=False))
        other = await ask(url, "/api/chat", body(stream=False, options={"num_ctx": 8192}))
        assert warm.json["load_duration"] < 40e6 <= other.json["load_duration"]
        gone = await ask(url, "/api/generate", {"model": MODEL, "keep_alive": 0})
        assert gone.json["done_reason"] == "unload"
        assert (await ask(url, "/api/ps")).json == {"models": []}


async def test_its_v1_ignores_tool_choice_and_ends_a_streamed_call_with_stop() -> None:
    async with SimOllama().serve() as url:
        ignored = await ask(url, "/v1/chat/completions", body("hello", tools=[WEATHER], tool_choice="required"))
        call = await ask(url, "/v1/chat/completions", body("the weather", tools=[WEATHER], stream=True))
    assert "tool_calls" not in ignored.json["choices"][0]["message"]
    assert call.events[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert call.events[-2]["choices"][0]["finish_reason"] == "stop"


async def test_images_are_base64_only() -> None:
    async with SimOllama().serve() as url:
        message = {"role": "user", "content": "what is it", "images": ["http://example.invalid/a.png"]}
        reply = await ask(url, "/api/chat", {"model": MODEL, "messages": [message]})
    assert reply.status == 400


async def test_what_it_has_is_listed() -> None:
    async with SimOllama(models=["qwen3:8b", "llama3.2:3b"]).serve() as url:
        assert [m["name"] for m in (await ask(url, "/api/tags")).json["models"]] == ["qwen3:8b", "llama3.2:3b"]
        assert "thinking" in (await ask(url, "/api/show", {"model": "qwen3:8b"})).json["capabilities"]
        assert "thinking" not in (await ask(url, "/api/show", {"model": "llama3.2:3b"})).json["capabilities"]
        assert (await ask(url, "/api/version")).json["version"]
        assert (await ask(url, "/")).body == b"Ollama is running"
