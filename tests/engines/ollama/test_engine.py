"""Ollama's whole answers and errors in OpenAI's shape, from scripted lines and from a server."""

from __future__ import annotations

import time
from base64 import b64decode
from contextlib import suppress
from struct import unpack
from typing import Any

import httpx
import msgspec
import pytest

from gateway.config.snapshot import Secret
from gateway.domain.drift import drift
from gateway.domain.endpoints import COMPLETIONS, EMBEDDINGS
from gateway.domain.upstream import UpstreamFailure
from gateway.engines.ollama.engine import OllamaEngine, translate
from gateway.engines.ollama.installed_models import LOAD, bounded, load_body
from gateway.engines.registry import ENGINES
from gateway.inspection.error_replies import judge
from gateway.transport.h1 import post_json
from simulator import SimOllama
from simulator.faults import Fault
from tests.engines.ollama_lines import (
    ASK,
    DONE,
    WEATHER,
    backend,
    call_line,
    deltas,
    ndjson,
    ollama,
    read,
    said,
    send,
)
from tests.engines.scripted import ScriptedClient, ScriptedResponse, call_of, events_of, state_of
from tests.support import running_gateway

# -- in one piece -----------------------------------------------------------------------------------------------------


async def whole(line: dict[str, Any], **fields: Any) -> Any:
    response, _, _ = await send(ndjson(line), **fields)
    assert response.headers["content-type"] == "application/json"
    return msgspec.json.decode(await response.read_all(10_000))


async def test_a_whole_answer_is_one_object() -> None:
    body = await whole({**said(content="hi", thinking="hm"), **DONE})
    assert (body["id"], body["object"], body["model"]) == ("chatcmpl-r1", "chat.completion", "qwen3:8b")
    assert body["usage"] == {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "reasoning": "hm"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


async def test_a_whole_answer_with_calls() -> None:
    body = await whole({**call_line("now", {"zone": "UTC"}), **DONE})
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    call = choice["message"]["tool_calls"][0]
    assert call["function"] == {"name": "now", "arguments": '{"zone":"UTC"}'}
    assert "index" not in call


async def test_an_answer_that_is_not_done_is_a_failure() -> None:
    response, _, _ = await send(ndjson(said(content="hi")))
    with pytest.raises(UpstreamFailure, match="not marked as done"):
        await response.read_all(1000)


async def test_a_completion_in_both_forms() -> None:
    lines = ({"response": "Once", "done": False}, {"response": "", **DONE})
    response, _, client = await send(ndjson(*lines), endpoint=COMPLETIONS, prompt="Tell", stream=True)
    events = events_of(await read(response))
    assert client.sent[0][0] == "/api/generate"
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["Once", ""]
    assert {(e["id"], e["object"]) for e in events[:-1]} == {("cmpl-r1", "text_completion")}
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    response, _, _ = await send(ndjson({"response": "Once", **DONE}), endpoint=COMPLETIONS, prompt="Tell")
    body = msgspec.json.decode(await response.read_all(1000))
    assert body["choices"][0]["text"] == "Once"
    assert body["object"] == "text_completion"


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_embeddings_become_a_list_of_objects(form: str) -> None:
    answer = ndjson({"model": "m", "embeddings": [[0.5, -1.0], [0.25, 2.0]], "prompt_eval_count": 4})
    response, _, client = await send(answer, endpoint=EMBEDDINGS, input=["a", "b"], encoding_format=form)
    assert client.sent[0][0] == "/api/embed"
    body = msgspec.json.decode(await response.read_all(1000))
    vectors = [entry["embedding"] for entry in body["data"]]  # their encoding is not Ollama's
    assert vectors == [[0.5, -1.0], [0.25, 2.0]]
    assert [entry["index"] for entry in body["data"]] == [0, 1]
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


# -- errors and refusals ----------------------------------------------------------------------------------------------


async def test_errors_of_ollama_pass_with_their_status() -> None:
    error = b'{"error":"model \'x\' not found"}'
    response, upstream, _ = await send(error, status=404, stream=True)
    assert response is upstream
    verdict = judge(404, {}, error, "chat")
    assert verdict.kind == "misconfigured"


async def test_a_prompt_that_ollama_refuses_as_too_long_is_understood() -> None:
    for message in (
        "the input length exceeds the context length",
        "the prompt is longer than the context length currently available to the model; shorten the prompt",
    ):
        assert judge(400, {}, msgspec.json.encode({"error": message}), "chat").kind == "too_long"


async def test_a_refusal_is_an_openai_error_and_asks_nobody() -> None:
    response, _, client = await send(n=3)
    assert response.status == 400
    error = msgspec.json.decode(await response.read_all(1000))["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == "n"
    assert client.sent == []


@pytest.mark.parametrize(
    "message", ['"m" does not support thinking', 'think value "low" is not supported for this model']
)
async def test_an_effort_is_a_wish(message: str) -> None:
    client = ScriptedClient(
        ScriptedResponse(400, [msgspec.json.encode({"error": message})]),
        ScriptedResponse(200, [ndjson({**said(content="hi"), **DONE})]),
    )
    call = call_of({**ASK, "reasoning_effort": "low"})
    response = await OllamaEngine().send(state_of(backend(), client), call)
    assert response.status == 200
    assert [body.get("think") for _, body in client.sent] == [True, None]


async def test_a_demand_to_think_is_not_softened() -> None:
    client = ScriptedClient(ScriptedResponse(400, [b'{"error":"m does not support thinking"}']))
    response = await OllamaEngine().send(state_of(backend(), client), call_of({**ASK, "think": True}))
    assert response.status == 400


async def test_another_400_under_a_wish_is_passed_on_whole() -> None:
    client = ScriptedClient(ScriptedResponse(400, [b'{"error":"no"}']))
    response = await OllamaEngine().send(state_of(backend(), client), call_of({**ASK, "reasoning_effort": "low"}))
    assert (response.status, await response.read_all(100)) == (400, b'{"error":"no"}')


async def test_the_native_api_lies_below_the_root_even_when_the_url_names_v1() -> None:
    for url, path in (("http://127.0.0.1:1/v1", "/api/chat"), ("http://127.0.0.1:1/box", "/box/api/chat")):
        client = ScriptedClient(ScriptedResponse(200, []))
        await OllamaEngine().send(state_of(backend(url=url), client), call_of(ASK))
        assert client.sent[0][0] == path


async def test_a_key_is_sent_where_one_is_set() -> None:
    client = ScriptedClient(ScriptedResponse(200, []))
    call = call_of(ASK)
    await OllamaEngine().send(state_of(backend(api_key=Secret("k")), client), call)
    assert client.headers[0]["authorization"] == "Bearer k"
    assert "authorization" not in dict(call.headers)


def test_models_are_known_with_and_without_latest() -> None:
    answer = {"models": [{"name": "qwen3:8b"}, {"name": "llama:latest"}]}
    assert ENGINES["ollama"].read_models(answer) == {"qwen3:8b": None, "llama:latest": None, "llama": None}
    assert ENGINES["ollama"].read_models({"models": None}) == {}


# -- against a server -------------------------------------------------------------------------------------------------


async def test_a_conversation_with_a_server() -> None:
    async with ollama() as (sim, state):
        fields = {**ASK, "messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "tools": [WEATHER]}
        engine = ENGINES["ollama"]
        for streamed in (True, False):
            response = await engine.send(state, call_of({**fields, "stream": streamed}))
            assert response.status == 200
            body = await read(response) if streamed else await response.read_all(100_000)
            response.release()
            assert b'"name":"get_weather"' in body
            assert b'"finish_reason":"tool_calls"' in body
        assert sim.loaded["qwen3:8b"][0] == 8192


async def test_a_missing_model_is_misconfigured() -> None:
    async with ollama() as (_, state):
        response = await ENGINES["ollama"].send(state, call_of({**ASK, "model": "nope"}))
        body = await response.read_all(1000)
        assert judge(response.status, response.headers, body, "chat").kind == "misconfigured"


async def test_a_prompt_cut_by_a_server_is_seen() -> None:
    async with ollama() as (_, state):
        ask = {**ASK, "messages": [{"role": "user", "content": "word " * 20_000}]}
        response: Any = await ENGINES["ollama"].send(state, call_of(ask))
        await response.read_all(1_000_000)
        assert response.violation == "prompt_cut"


async def test_the_gateway_serves_a_chat_from_ollama() -> None:
    sim = SimOllama()
    async with sim.serve() as url:
        routes = f"backends: {{chat: {{engine: ollama, url: '{url}', model: 'qwen3:8b', context: 8192}}}}"
        async with running_gateway(routes) as gateway:
            body = {**ASK, "model": "chat", "stream": True, "stream_options": {"include_usage": True}}
            reply = await gateway.client.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200
            events = events_of(reply.content)
            assert events[-1] == "[DONE]"
            assert events[-2]["usage"]["completion_tokens"] > 0
            assert {e["model"] for e in events[:-1]} == {"chat"}
            assert "".join(d.get("content") or "" for d in deltas(events))
            assert sim.requests[-1].json["options"]["num_ctx"] == 8192


async def test_the_gateway_breaks_a_stream_that_ollama_broke() -> None:
    sim = SimOllama()
    async with sim.serve() as url:
        routes = f"backends: {{chat: {{engine: ollama, url: '{url}', model: 'qwen3:8b', context: 8192}}}}"
        async with running_gateway(routes) as gateway:
            sim.faults.add(Fault("error_event", after=40))
            body = {**ASK, "model": "chat", "stream": True, "max_tokens": 500}
            body["messages"] = [{"role": "user", "content": "Tell me a long story about the sea."}]
            reply = bytearray()
            with suppress(httpx.RemoteProtocolError):
                async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    async for part in answer.aiter_raw():
                        reply += part
            assert b"stream_interrupted" in reply
            assert b"[DONE]" not in reply


async def test_the_gateway_serves_embeddings_from_ollama() -> None:
    sim = SimOllama(models=["embed:latest"])
    async with sim.serve() as url:
        routes = f"backends: {{embed: {{engine: ollama, url: '{url}', model: embed, context: 100}}}}"
        async with running_gateway(routes) as gateway:
            ask = {"model": "embed", "input": ["one", "two"], "dimensions": 8}
            reply = await gateway.client.post("/v1/embeddings", json=ask)
            coded = await gateway.client.post("/v1/embeddings", json={**ask, "encoding_format": "base64"})
            long = await gateway.client.post("/v1/embeddings", json={**ask, "input": ["one", "x" * 450]})
            again = await gateway.client.post("/v1/embeddings", json={**ask, "input": "one"})
    vectors = [entry["embedding"] for entry in reply.json()["data"]]
    assert [len(vector) for vector in vectors] == [8, 8]
    assert reply.json()["model"] == "embed"
    assert reply.json()["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    assert list(unpack("<8f", b64decode(coded.json()["data"][1]["embedding"]))) == pytest.approx(vectors[1])
    assert sim.requests[0].json["truncate"] is False
    assert sim.requests[0].json["options"]["num_ctx"] == 100
    assert long.status_code == 400
    assert long.json()["error"]["code"] == "context_length_exceeded"
    assert again.json()["data"][0]["embedding"] == vectors[0]


# -- loading ----------------------------------------------------------------------------------------------------------


def test_a_model_is_loaded_ahead_as_requests_load_it() -> None:
    """Another `num_ctx` than before makes Ollama load the model again; since v0.30 another `shift` too."""
    state = state_of(backend(model="qwen3:8b"))
    asked = translate(state, call_of(ASK)).body
    ahead = load_body(state, "10m")
    assert ahead["options"]["num_ctx"] == asked["options"]["num_ctx"]
    assert "shift" not in {**ahead, **asked}
    assert load_body(state, 0) == {"model": "qwen3:8b", "keep_alive": 0, "stream": False}


def test_the_window_that_the_model_was_trained_for_bounds_the_declared_one() -> None:
    state = state_of(backend(context=131072))
    state.saw_model("qwen3:8b", 40960)
    assert translate(state, call_of(ASK)).body["options"]["num_ctx"] == 131072, "the same in every request"
    assert (state.window(0.0), bounded(state, 131072)) == (40960, 40960)
    assert drift(state, 0.0) == ["context: 131072 is declared, it serves 40960"]


def test_a_smaller_window_than_the_model_could_have_is_no_difference() -> None:
    state = state_of(backend(context=8192))
    state.saw_model("qwen3:8b", 40960)
    assert (state.window(0.0), drift(state, 0.0)) == (8192, [])


@pytest.mark.parametrize(
    ("version", "think"), [(None, True), ("0.17.6", True), ("0.17.7", "low"), ("0.33.0-rc2", "low"), ("junk", True)]
)
def test_an_effort_is_a_level_where_ollama_takes_one(version: str | None, think: bool | str) -> None:
    state = state_of(backend(model="qwen3:8b"), version=version)
    assert translate(state, call_of({**ASK, "reasoning_effort": "minimal"})).body["think"] == think
    assert translate(state, call_of({**ASK, "reasoning_effort": "none"})).body["think"] is False
    assert translate(state, call_of({**ASK, "model": "gpt-oss:20b", "reasoning_effort": "low"})).body["think"] == "low"


# -- since llama-server runs its models -------------------------------------------------------------------------------


async def test_a_prompt_that_its_runner_refuses_goes_to_a_larger_window_and_teaches_the_real_one() -> None:
    small, large = (SimOllama(name, models=["qwen3:8b"], version="0.33.0") for name in ("small", "large"))
    async with small.serve() as one, large.serve() as two:
        routes = f"""
backends:
  small: {{engine: ollama, url: "{one}", model: "qwen3:8b", context: 32768}}
  large: {{engine: ollama, url: "{two}", model: "qwen3:8b", context: 32768}}
aliases:
  chat: {{use: [small, large]}}
"""
        async with running_gateway(routes) as gateway, httpx.AsyncClient(base_url=gateway.url) as client:
            await gateway.until_ready("small", "large")
            small.trained = 2048  # it gives the model no more, and its list was read before
            state = gateway.gateway.fleet["small"]
            for letter, windows in (("x", (32768, 2048)), ("y", (2048,))):  # two prompts, or its list read again
                body = {**ASK, "model": "chat", "messages": [{"role": "user", "content": letter * 10_000}]}
                reply = await client.post("/v1/chat/completions", json={**body, "max_tokens": 64})
                assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "large")
                assert reply.headers["x-gateway-routed"] == "too_long"
                assert state.window(time.monotonic()) in windows
                assert state.health.fails == 0


async def test_loading_ahead_loads_once() -> None:
    async with ollama(version="0.33.0") as (sim, state):
        state.saw_model("qwen3:8b", None)
        assert state.client is not None
        loaded = await post_json(state.client, LOAD, [], load_body(state, "10m"))
        await loaded.read_all(10_000)
        loaded.release()
        answered = await OllamaEngine().send(state, call_of(ASK))
        await answered.read_all(100_000)
        answered.release()
        assert (sim.loads, len(sim.requests)) == (1, 2)
