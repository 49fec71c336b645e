"""vLLM's own 4xx answers: which are learned from, which move the request on, which are the client's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.support import RunningGateway, running_gateway

from .asks import CALL, CHAT, WEATHER, chat, script
from .servers import RUST, VllmServer

NEVER = "{every: none}"
CALLING = chat(tools=[WEATHER], **script("<think>hm</think>" + CALL % "Oslo"))
DENSE = "q1z.x7!Kw9#" * 220  # about a token a byte: the estimate takes it for a fifth of that


@asynccontextmanager
async def gateway_on(*backends: str, use: str, ready: tuple[str, ...] = ()) -> AsyncIterator[RunningGateway]:
    """`front` is the chain `use`."""
    routes = f"backends: {{{', '.join(backends)}}}\naliases: {{front: [{use}]}}"
    async with running_gateway(routes) as gateway:
        await gateway.until_ready(*ready)
        yield gateway


def error(answer: Any) -> dict[str, Any]:
    envelope: dict[str, Any] = answer.json()["error"]
    return envelope


# -- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_server_without_a_tool_parser_is_learned_and_then_left_out(
    tools: VllmServer, plain: VllmServer, stream: bool
) -> None:
    async with gateway_on(
        plain.routes("bare"), tools.routes("able"), use="bare, able", ready=("bare", "able")
    ) as gateway:
        for attempts in ("2", "1"):
            answer = await gateway.client.post(CHAT, json={**CALLING, "stream": stream})
            assert answer.status_code == 200
            assert "get_weather" in answer.text
            assert answer.headers["x-gateway-backend"] == "able"
            assert answer.headers["x-gateway-routed"] == "incapable"
            assert answer.headers["x-gateway-attempts"] == attempts
        plainly = await gateway.client.post(CHAT, json=chat(**script("Hello")))
        assert plainly.headers["x-gateway-backend"] == "bare"
        assert gateway.state("bare") is State.READY


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}], ids=str
)
async def test_the_missing_launch_flag_is_named_when_nothing_else_can_call_tools(
    plain: VllmServer, choice: Any
) -> None:
    async with gateway_on(plain.routes("bare"), use="bare", ready=("bare",)) as gateway:
        for attempts in ("1", None):
            answer = await gateway.client.post(CHAT, json={**CALLING, "tool_choice": choice})
            assert (answer.status_code, error(answer)["code"]) == (400, "tool_choice_unsupported")
            assert "--tool-call-parser" in error(answer)["message"]
            assert answer.headers.get("x-gateway-attempts") == attempts


async def test_offered_tools_with_choice_none_are_served_without_a_parser(plain: VllmServer) -> None:
    async with gateway_on(plain.routes("bare"), use="bare", ready=("bare",)) as gateway:
        body = chat(tools=[WEATHER], tool_choice="none", **script("Hello"))
        answer = await gateway.client.post(CHAT, json=body)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"


# -- the window -------------------------------------------------------------------------------------------------------


async def test_a_prompt_that_vllm_finds_too_long_moves_to_the_larger_window(
    tools: VllmServer, plain: VllmServer
) -> None:
    async with gateway_on(
        tools.routes("small"), plain.routes("large"), use="small, large", ready=("small", "large")
    ) as g:
        answer = await g.client.post(CHAT, json=chat(DENSE, **script("Hello")))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-gateway-backend"] == "large"
        assert answer.headers["x-gateway-attempts"] == "2"
        assert answer.headers["x-gateway-routed"] == "too_long"
        assert g.state("small") is State.READY


async def test_a_prompt_that_is_surely_too_long_is_never_sent_to_the_small_window(
    tools: VllmServer, plain: VllmServer
) -> None:
    said = "def value(self): return the name of it\n" * 250
    async with gateway_on(
        tools.routes("small"), plain.routes("large"), use="small, large", ready=("small", "large")
    ) as g:
        answer = await g.client.post(CHAT, json=chat(said, **script("Hello")))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-gateway-backend"] == "large"
        assert answer.headers["x-gateway-attempts"] == "1"
        assert answer.headers["x-gateway-routed"] == "too_long"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("said", [DENSE, "far too long " * 4000], ids=["told by vLLM", "told by the estimate"])
async def test_an_overflow_is_told_in_the_words_agents_compact_on(tools: VllmServer, said: str, stream: bool) -> None:
    async with gateway_on(tools.routes("small"), use="small", ready=("small",)) as gateway:
        answer = await gateway.client.post(CHAT, json=chat(said, stream=stream))
        assert (answer.status_code, error(answer)["code"]) == (400, "context_length_exceeded")
        message = error(answer)["message"]
        assert message.startswith("This model's maximum context length is 2048 tokens. However, your prompt contains ")
        assert int(message.split("contains ")[1].split()[0]) > 2048
        assert gateway.state("small") is State.READY


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_limit_beyond_the_window_is_clamped(tools: VllmServer, field: str) -> None:
    async with gateway_on(tools.routes("small"), use="small", ready=("small",)) as gateway:
        answer = await gateway.client.post(CHAT, json={**chat(**script("<think></think>Hello")), field: 65536})
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"
        assert answer.headers["x-gateway-adapted"] == "max_tokens_clamped"


async def test_a_window_that_was_never_read_is_learned_from_the_refusal(tools: VllmServer) -> None:
    async with gateway_on(tools.routes("small", model="tiny", health=NEVER), use="small") as gateway:
        answer = await gateway.client.post(CHAT, json=chat(max_tokens=65536, **script("<think></think>Hello")))
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"
        if not RUST:  # which shortens the answer itself
            assert answer.headers["x-gateway-attempts"] == "2"
            assert gateway.gateway.fleet["small"].window(time.monotonic()) == 2048


# -- whose fault ------------------------------------------------------------------------------------------------------

BAD = {
    "temperature": {"temperature": -1},
    "top_p": {"top_p": 5},
    "n": {"n": 0},
    "messages": {"messages": "hi"},
    "max_tokens": {"max_tokens": 0},
    "tools": {"tools": []},
    "logprobs": {"top_logprobs": 3},
    "response_format": {"response_format": {"type": "json_schema"}},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_a_bad_parameter_is_the_clients_in_vllms_words(
    tools: VllmServer, bad: dict[str, Any], stream: bool
) -> None:
    sim = SimVllm("next")
    async with sim.serve() as url:
        chain = (tools.routes("a"), f"b: {{url: '{url}'}}")
        async with gateway_on(*chain, use="a, b", ready=("a", "b")) as gateway:
            body = {**chat(), **bad, "stream": stream}
            answer = await gateway.client.post(CHAT, json=body)
            direct = await gateway.client.post(tools.url + CHAT, json={**body, "model": "tiny"})
            assert answer.status_code == direct.status_code == 400
            told, own = (error(one)["message"].partition(" [{")[0] for one in (answer, direct))  # details in any order
            assert told == own
            assert error(answer)["type"] == "invalid_request_error"
            assert gateway.gateway.fleet["a"].health.fails == 0
            assert sim.requests == []


async def test_an_unserved_endpoint_is_learned_for_that_endpoint_only(tools: VllmServer) -> None:
    async with gateway_on(tools.routes("a"), use="a", ready=("a",)) as gateway:
        for _ in range(2):
            answer = await gateway.client.post("/v1/embeddings", json={"model": "front", "input": "hi"})
            assert (answer.status_code, error(answer)["code"]) == (400, "input_unsupported")
        assert gateway.metric("gateway_attempts_total", backend="a", outcome="unserved") == (0 if RUST else 1)
        assert (await gateway.client.post(CHAT, json=chat(**script("Hello")))).status_code == 200


# -- misconfigured ----------------------------------------------------------------------------------------------------


async def test_a_model_it_does_not_serve_is_seen_in_its_list(tools: VllmServer) -> None:
    async with gateway_on(tools.routes("a", model="nope"), use="a") as gateway:
        await gateway.until(lambda: gateway.state("a") is State.MISCONFIGURED)
        assert "it serves: tiny, tiny-alias" in gateway.gateway.fleet["a"].health.reason
        answer = await gateway.client.post(CHAT, json=chat())
        assert (answer.status_code, error(answer)["code"]) == (503, "no_backend_available")
        assert "nope" in error(answer)["message"]


async def test_its_404_for_a_model_makes_it_misconfigured_and_the_next_serves(tools: VllmServer) -> None:
    backends = (tools.routes("wrong", model="nope", health=NEVER), tools.routes("right"))
    async with gateway_on(*backends, use="wrong, right", ready=("right",)) as gateway:
        answer = await gateway.client.post(CHAT, json=chat(**script("Hello")))
        assert answer.status_code == 200
        assert answer.headers["x-gateway-backend"] == "right"
        assert answer.headers["x-gateway-fallback"] == "misconfigured"
        assert gateway.state("wrong") is State.MISCONFIGURED


async def test_a_second_served_name_can_be_asked_for(tools: VllmServer) -> None:
    async with gateway_on(tools.routes("a", model="tiny-alias"), use="a", ready=("a",)) as gateway:
        answer = await gateway.client.post(CHAT, json=chat(**script("Hello")))
        assert (answer.status_code, answer.json()["model"]) == (200, "front")


@pytest.mark.parametrize("key", [None, "wrong"], ids=["no key", "a wrong key"])
async def test_a_refused_credential_is_misconfigured_and_never_the_clients_401(
    plain: VllmServer, key: str | None
) -> None:
    given = f", api_key: {key}" if key else ""
    probed, asked = f"probed: {{url: '{plain.url}'{given}}}", f"asked: {{url: '{plain.url}'{given}, health: {NEVER}}}"
    async with gateway_on(probed, asked, use="asked") as gateway:
        await gateway.until(lambda: gateway.state("probed") is State.MISCONFIGURED)
        answer = await gateway.client.post(CHAT, json=chat(), headers={"authorization": f"Bearer {plain.api_key}"})
        assert (answer.status_code, error(answer)["code"]) == (502, "upstream_error")
        assert "api_key" in error(answer)["message"]
        assert gateway.state("asked") is State.MISCONFIGURED


async def test_a_server_with_a_key_serves_when_the_key_is_right(plain: VllmServer) -> None:
    async with gateway_on(plain.routes("a"), use="a", ready=("a",)) as gateway:
        answer = await gateway.client.post(CHAT, json=chat(**script("Hello")))
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"
