"""Ollama's answers in OpenAI's shape, whatever arrives and however it is cut."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from struct import unpack
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backend import BackendState
from gateway.config.snapshot import Backend, Secret
from gateway.routing.request import COMPLETIONS, EMBEDDINGS, Endpoint
from gateway.sim import SimOllama
from gateway.sim.faults import Fault
from gateway.upstream.answers import judge
from gateway.upstream.client import ProtocolFailure, ResetFailure, Response, UpstreamFailure
from gateway.upstream.connect import open_client
from gateway.upstream.engines import ENGINES
from gateway.upstream.engines.ollama import OllamaEngine, SentPrompt, version_of
from gateway.upstream.engines.ollama_reply import Line, LineFramer
from tests.support import running_gateway
from tests.upstream.engines.scripted import ScriptedClient, ScriptedResponse, call_of, events_of, state_of

ASK = {"model": "qwen3:8b", "messages": [{"role": "user", "content": "hello"}]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
DONE: dict[str, Any] = {"done": True, "done_reason": "stop", "prompt_eval_count": 12, "eval_count": 5}


def said(**message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": "", **message}, "done": False}


def call_line(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return said(tool_calls=[{"function": {"index": 0, "name": name, "arguments": arguments}}])


def ndjson(*lines: dict[str, Any]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def backend(**changed: Any) -> Backend:
    return Backend("q", "ollama", **{"url": "http://127.0.0.1:1", "context": 8192, **changed})


async def send(
    *pieces: bytes | UpstreamFailure, endpoint: Endpoint | None = None, status: int = 200, **fields: Any
) -> tuple[Response, ScriptedResponse, ScriptedClient]:
    upstream = ScriptedResponse(status, pieces)
    client = ScriptedClient(upstream)
    asked = {**ASK, **fields} if endpoint is None else {"model": "m", **fields}
    call = call_of(asked, endpoint) if endpoint else call_of(asked)
    return await OllamaEngine().send(state_of(backend(), client), call), upstream, client


async def read(response: Response) -> bytes:
    parts = []
    while part := await response.read_some():
        parts.append(part)
    return b"".join(parts)


async def stream(*lines: dict[str, Any], **fields: Any) -> list[Any]:
    response, _, _ = await send(ndjson(*lines), stream=True, **fields)
    return events_of(await read(response))


def deltas(events: list[Any]) -> list[Any]:
    return [e["choices"][0]["delta"] for e in events if isinstance(e, dict) and e["choices"]]


# -- streams ----------------------------------------------------------------------------------------------------------


async def test_a_stream_has_openais_order() -> None:
    lines = (said(thinking="hm"), said(content="Hel"), said(content="lo"), {**said(), **DONE})
    events = await stream(*lines, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    usage = events[-2]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    assert deltas(events) == [
        {"role": "assistant", "content": ""},
        {"reasoning": "hm"},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    chunks = events[:-1]
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]] == [None, None, None, None, "stop"]
    assert {(c["id"], c["object"], c["model"]) for c in chunks} == {
        ("chatcmpl-r1", "chat.completion.chunk", "qwen3:8b")
    }
    assert len({c["created"] for c in chunks}) == 1


async def test_no_usage_is_sent_that_nobody_asked_for() -> None:
    events = await stream(said(content="x"), DONE)
    assert not any("usage" in e for e in events[:-1])


async def test_calls_get_ids_indexes_and_string_arguments() -> None:
    events = await stream(call_line("a", {"x": "<é>"}), call_line("b", {}), {**said(), **DONE})
    calls = [d["tool_calls"][0] for d in deltas(events) if "tool_calls" in d]
    assert [(c["index"], c["type"], c["function"]["name"]) for c in calls] == [
        (0, "function", "a"),
        (1, "function", "b"),
    ]
    assert all(re.fullmatch("call_[0-9a-f]{24}", c["id"]) for c in calls)
    assert [msgspec.json.decode(c["function"]["arguments"]) for c in calls] == [{"x": "<é>"}, {}]
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("reason", "ours"), [("stop", "stop"), ("length", "length"), (None, "stop")])
async def test_the_end_is_told_in_openais_word(reason: str | None, ours: str) -> None:
    events = await stream(said(content="x"), {**DONE, "done_reason": reason})
    assert events[-2]["choices"][0]["finish_reason"] == ours


async def test_a_turn_that_was_cut_says_so_even_with_calls() -> None:
    events = await stream(call_line("a", {}), {**DONE, "done_reason": "length"})
    assert events[-2]["choices"][0]["finish_reason"] == "length"


async def test_one_line_may_say_everything() -> None:
    line = {**said(thinking="hm", content="hi", tool_calls=[{"function": {"name": "f", "arguments": {}}}]), **DONE}
    kinds = [next(iter(d), "") for d in deltas(await stream(line))]
    assert kinds == ["role", "reasoning", "content", "tool_calls", ""]


async def test_an_error_line_becomes_an_error_event_and_nothing_follows() -> None:
    events = await stream(said(content="Hel"), {"error": "the runner died"}, {**said(), **DONE})
    assert events[-1]["error"]["message"] == "the runner died"


async def test_a_stream_without_its_last_line_has_no_finish_reason() -> None:
    events = await stream(said(content="Hel"))
    assert "[DONE]" not in events
    assert all(e["choices"][0]["finish_reason"] is None for e in events)


async def test_a_broken_connection_is_told_as_such() -> None:
    response, _, _ = await send(ndjson(said(content="Hel")), ResetFailure("gone"), stream=True)
    assert b"Hel" in await response.read_some()
    with pytest.raises(ResetFailure):
        await response.read_some()


@pytest.mark.parametrize("reason", ["load", "unload"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_loading_the_model_is_no_answer(reason: str, streamed: bool) -> None:
    response, _, _ = await send(ndjson({**said(), "done": True, "done_reason": reason}), stream=streamed)
    with pytest.raises(UpstreamFailure, match="loaded"):
        await response.read_all(1000)


async def test_a_last_line_without_its_line_break_counts() -> None:
    response, _, _ = await send(ndjson(said(content="x"), DONE).rstrip(b"\n"), stream=True)
    assert (await read(response)).endswith(b"[DONE]\n\n")


async def test_what_is_not_ollamas_json_is_a_failure() -> None:
    response, _, _ = await send(b"<html>\n", stream=True)
    with pytest.raises(ProtocolFailure):
        await response.read_some()


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(st.text(min_size=1), min_size=1, max_size=8),
    st.lists(st.integers(min_value=1, max_value=400), max_size=12),
)
async def test_how_the_bytes_arrive_does_not_matter(texts: list[str], cuts: list[int]) -> None:
    body = ndjson(*[said(content=text) for text in texts], {**said(), **DONE})
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(body[start : start + cut])
        start += cut
    pieces = [piece for piece in [*pieces, body[start:]] if piece]
    response, _, _ = await send(*pieces, stream=True)
    events = events_of(await read(response))
    assert "".join(d.get("content", "") for d in deltas(events)) == "".join(texts)
    assert events[-1] == "[DONE]"


async def test_one_arrival_is_one_piece_for_the_reader() -> None:
    response, _, _ = await send(ndjson(said(content="a"), said(content="b")), ndjson(DONE), stream=True)
    first = await response.read_some()
    assert first.count(b"data: ") == 3
    assert (await response.read_some()).endswith(b"[DONE]\n\n")
    assert await response.read_some() == b""


def test_a_line_without_an_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.engines.ollama_reply.LINE_MOST", 100)
    framer = LineFramer()
    framer.feed(b"x" * 100)
    with pytest.raises(ProtocolFailure):
        framer.feed(b"x")


async def test_abort_and_release_reach_the_connection() -> None:
    for streamed in (True, False):
        response, upstream, _ = await send(ndjson(DONE), stream=streamed)
        response.abort(reason := ResetFailure("left"))
        response.release()
        assert (upstream.aborted, upstream.released) == ([reason], 1)


async def test_logprobs_are_passed_in_openais_shape() -> None:
    entry = {"token": "x", "logprob": -0.5}
    events = await stream({**said(content="x"), "logprobs": [entry]}, DONE, logprobs=True)
    assert events[1]["choices"][0]["logprobs"]["content"] == [{**entry, "bytes": None, "top_logprobs": []}]


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
    vectors = [entry["embedding"] for entry in body["data"]]
    if form == "base64":
        vectors = [list(unpack("<2f", b64decode(vector))) for vector in vectors]
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


# -- was the prompt cut? ----------------------------------------------------------------------------------------------


def judged(
    count: int, *, text: int, window: int | None = 8192, version: str | None = "0.9.6", low: int = 0
) -> str | None:
    return SentPrompt(text, window, low or int(text / 4.8), version).violation(Line(prompt_eval_count=count, done=True))


def test_a_full_window_was_cut() -> None:
    assert judged(8192, text=100) == "prompt_cut"
    assert judged(8191, text=100, version=None) == "prompt_cut"
    assert judged(8000, text=32_000) is None
    assert judged(9000, text=36_000, window=None) is None


def test_far_fewer_tokens_than_the_text_can_have_were_cut() -> None:
    assert judged(1000, text=24_000) == "prompt_cut"  # at least 5000
    assert judged(3000, text=24_000) is None


def test_a_low_count_proves_nothing_where_cached_tokens_are_not_counted_or_nothing_is_cut() -> None:
    for version in ("0.3.14", "0.12.6", "0.30.0", None, "dev"):
        assert judged(10, text=24_000, version=version) is None


def test_a_learned_ratio_makes_no_alarm() -> None:
    """Learned from Chinese (1.5 bytes per token); then English comes."""
    assert judged(5000, text=24_000, low=14_400) is None


def test_short_prompts_and_absent_counts_are_not_judged() -> None:
    assert judged(1, text=4000) is None
    assert judged(0, text=24_000) is None


async def test_a_cut_prompt_is_told_on_the_response() -> None:
    full = {**said(content="x"), **DONE, "prompt_eval_count": 8192}
    for streamed in (True, False):
        response: Any
        response, _, _ = await send(ndjson(full), stream=streamed)
        assert response.violation is None
        await response.read_all(10_000)
        assert response.violation == "prompt_cut"


@settings(deadline=None)
@given(st.text())
def test_any_version_text_is_read(text: str) -> None:
    assert version_of(text) >= (0,)
    assert version_of("0.12.6-rc1") == (0, 12, 6)


# -- against a server -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def ollama(**options: Any) -> AsyncIterator[tuple[SimOllama, BackendState]]:
    sim = SimOllama(**options)
    async with sim.serve() as url:
        box = backend(url=url)
        client = open_client(box.origin, connect_timeout=3.0)
        try:
            yield sim, state_of(box, client)
        finally:
            await client.close()


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
