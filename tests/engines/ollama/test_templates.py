"""Models with the chat template of their file, and models with a Go template: what becomes of the edges in which they
differ. Against a simulated Ollama of 0.33."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from simulator import SimOllama, SimVllm
from tests.support import RunningGateway, running_gateway

BOTH = pytest.mark.parametrize("model", ["native", "go"])
FORMS = pytest.mark.parametrize("stream", [False, True])
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@asynccontextmanager
async def desk(**options: Any) -> AsyncIterator[tuple[RunningGateway, SimOllama, SimVllm]]:
    """Aliases `native` and `go`, each with a vLLM behind its Ollama, and `only-native`, `only-go`."""
    models = ["native", "go"]
    sim = SimOllama("desk", models=models, native=["native"], thinks=[], version="0.33.0", **options)
    vllm = SimVllm("vllm", served=["m"], tool_parser="hermes", vision=True)
    async with sim.serve() as url, vllm.serve() as other:
        backends = [f"o-{m}: {{engine: ollama, url: '{url}', model: {m}, context: 8192}}" for m in models]
        aliases = [f"{m}: [o-{m}, vllm]\n  only-{m}: [o-{m}]" for m in models]
        routes = "defaults: {health: {every: 50ms}}\nbackends:\n  " + "\n  ".join(backends)
        routes += f"\n  vllm: {{url: '{other}', tool_parser: hermes}}\naliases:\n  " + "\n  ".join(aliases) + "\n"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("o-native", "o-go", "vllm")
            yield gateway, sim, vllm


async def chat(gateway: RunningGateway, model: str, text: str = "hi", **more: Any) -> tuple[int, Any, str]:
    """(status, the choice with its message or its deltas joined, the whole text)."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    reply = await gateway.client.post("/v1/chat/completions", json=body)
    if not more.get("stream"):
        answer = reply.json()
        return reply.status_code, answer["choices"][0] if "choices" in answer else answer["error"], reply.text
    choice: dict[str, Any] = {"message": {"content": ""}}
    for line in reply.text.splitlines():
        event = json.loads(line[6:]) if line.startswith("data: {") else {}
        for one in event.get("choices") or ():
            choice["message"]["content"] += one["delta"].get("content") or ""
            choice |= {k: v for k, v in one.items() if k in ("finish_reason", "stop_reason") and v is not None}
    return reply.status_code, choice, reply.text


@BOTH
@FORMS
async def test_a_call_that_the_limit_cuts_off_ends_with_length_and_is_paid_once(model: str, stream: bool) -> None:
    async with desk() as (gateway, _, vllm):
        asked = {"tools": [TOOL], "max_tokens": 12, "stream": stream}
        status, choice, text = await chat(gateway, model, "the weather in Rome", **asked)
        assert (status, choice["finish_reason"]) == (200, "length")
        assert "error" not in text
        assert vllm.requests == []
        assert gateway.gateway.fleet[f"o-{model}"].health.fails == 0


@FORMS
async def test_an_output_that_its_template_cannot_read_is_the_models_fault(stream: bool) -> None:
    async with desk() as (gateway, sim, vllm):
        sim.fault("wrong_parser")
        status, choice, text = await chat(gateway, "native", stream=stream)
        assert (status, choice["finish_reason"], len(vllm.requests)) == (200, "stop", 1)
        status, _, text = await chat(gateway, "only-native", stream=stream)
        assert status == 502
        assert "wrote what the parser of its own chat template cannot read" in text
        assert gateway.gateway.fleet["o-native"].health.fails == 0


@FORMS
async def test_one_token_again_and_again_is_told_as_such(stream: bool) -> None:
    async with desk() as (gateway, sim, vllm):
        sim.fault("repetition")
        status, choice, text = await chat(gateway, "go", stream=stream)
        assert (status, choice["message"]["content"], choice["finish_reason"]) == (200, " again" * 30, "length")
        assert choice["stop_reason"] == "stopped by Ollama: one token again and again"
        assert "error" not in text
        assert (vllm.requests, gateway.gateway.fleet["o-go"].health.fails) == ([], 0)
        assert gateway.metric("gateway_violations_total", backend="o-go", kind="repetition") == 1


@BOTH
async def test_a_picture_goes_on_to_a_model_that_sees(model: str) -> None:
    async with desk() as (gateway, sim, vllm):
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
        body = {"model": model, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, picture]}]}
        for asked in (1, 1):  # learned from the first
            reply = await gateway.client.post("/v1/chat/completions", json=body)
            assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "vllm")
            assert sum(request.path == "/api/chat" for request in sim.requests) == asked
        assert len(vllm.requests) == 2


# -- what Ollama's API cannot express ---------------------------------------------------------------------------------

ADDRESS = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"n": 2}, "`n` must be 1"),
        ({"messages": [{"role": "user", "content": [ADDRESS]}]}, "Ollama fetches no pictures"),
        ({"messages": [{"role": "user", "content": [SOUND]}]}, "not a part of type 'input_audio'"),
    ],
    ids=["several answers", "a picture by address", "sound"],
)
async def test_what_ollama_cannot_be_asked_goes_to_the_next_candidate(more: dict[str, Any], text: str) -> None:
    async with desk() as (gateway, sim, vllm):
        body = {"model": "go", "messages": [{"role": "user", "content": "hi"}], **more}
        reply = await gateway.client.post("/v1/chat/completions", json=body)
        assert reply.headers["x-gateway-backend"] == "vllm"
        assert len(vllm.requests) == 1
        alone = await gateway.client.post("/v1/chat/completions", json={**body, "model": "only-go"})
        assert (alone.status_code, text in alone.json()["error"]["message"]) == (400, True)
        assert sim.requests == []
        assert gateway.gateway.fleet["o-go"].facts.lacks == {}


async def test_what_is_wrong_for_every_server_is_told_at_once() -> None:
    async with desk() as (gateway, _, vllm):
        body = {"model": "go", "messages": [{"role": "user", "content": "hi"}], "temperature": "hot"}
        assert (await gateway.client.post("/v1/chat/completions", json=body)).status_code == 400
        assert vllm.requests == []


async def test_a_model_that_was_not_pulled_is_told_with_what_mends_it() -> None:
    sim = SimOllama("desk", models=["there"])
    async with sim.serve() as url:
        routes = f"backends: {{desk: {{engine: ollama, url: '{url}', model: 'qwen3:8b'}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until(lambda: gateway.state("desk").value == "misconfigured")
            reply = await gateway.client.post("/v1/chat/completions", json={"model": "desk", "messages": []})
            shown = (await gateway.client.get("/status")).json()["backends"]["desk"]["reason"]
    assert "ollama pull qwen3:8b" in shown
    assert "ollama pull qwen3:8b" in reply.text
