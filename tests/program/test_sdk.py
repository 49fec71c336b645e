"""The openai SDK against the gateway: what its users meet, answers and exceptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionChunk

from simulator import SimVllm
from tests.support import RunningGateway, running_gateway

KEY, OTHER_KEY = "a-client-key", "another-key"
QUESTION: Any = [{"role": "user", "content": "What is 12*17?"}]
WEATHER: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "strict": True,  # or the SDK's stream helper does not take it
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@dataclass
class Stage:
    """One chat backend `chat` and one embedding backend `embed`, the gateway, and a client of it with a good key."""

    chat: SimVllm
    gateway: RunningGateway

    def client(self, base: str = "/v1", key: str = KEY, retries: int = 0) -> AsyncOpenAI:
        http = DefaultAsyncHttpxClient(trust_env=False)
        return AsyncOpenAI(base_url=self.gateway.url + base, api_key=key, max_retries=retries, http_client=http)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with stage_with("") as ready:
        yield ready


@asynccontextmanager
async def stage_with(options: str) -> AsyncIterator[Stage]:
    """`options` are further settings of the chat backend."""
    chat = SimVllm(name="chat", served=["some/model"], context=32768, tool_parser="hermes", prefill=1e7, decode=1e4)
    embed = SimVllm(name="embed", served=["some/embedder"], context=8192, pooling=True)
    async with chat.serve(port=0) as chat_url, embed.serve(port=0) as embed_url:
        routes = f"""
backends:
  chat: {{url: "{chat_url}", tool_parser: hermes{options}}}
  embed: {{url: "{embed_url}"}}
aliases:
  main: [chat]
  vectors: [embed]
  secret: [chat]
clients:
  agent: {{key: "{KEY}", aliases: [main, vectors]}}
  other: {{key: "{OTHER_KEY}"}}
"""
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("chat", "embed")
            yield Stage(chat, gateway)


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["/v1", "/v1/", ""])
async def test_the_base_url_may_have_v1_or_not(stage: Stage, base: str) -> None:
    async with stage.client(base) as client:
        reply = await client.chat.completions.create(model="main", messages=QUESTION)
        assert [model.id for model in (await client.models.list()).data] == ["main", "vectors"]
        assert (await client.models.retrieve("main")).id == "main"
    assert reply.choices[0].message.content == "12*17 is 204."
    assert reply.model == "main"


async def test_the_headers_that_say_who_answered_are_there(stage: Stage) -> None:
    async with stage.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="main", messages=QUESTION, extra_headers={"x-request-id": "my-own-id"}
        )
    assert raw.headers["x-gateway-backend"] == "chat"
    assert raw.headers["x-gateway-attempts"] == "1"
    assert raw.parse()._request_id == "my-own-id"
    assert raw.parse().id == "chatcmpl-my-own-id"


async def chunks_of(client: AsyncOpenAI, **options: Any) -> list[ChatCompletionChunk]:
    stream = await client.chat.completions.create(model="main", messages=QUESTION, stream=True, **options)
    return [chunk async for chunk in stream]


async def test_usage_comes_at_the_end_of_a_stream_when_it_is_asked_for_and_only_then(stage: Stage) -> None:
    async with stage.client() as client:
        asked = await chunks_of(client, stream_options={"include_usage": True})
        silent = await chunks_of(client)
    last = asked[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0
    assert all(chunk.choices and chunk.usage is None for chunk in silent)
    assert {chunk.id for chunk in silent} == {silent[0].id}
    assert all(chunk.model == "main" for chunk in asked + silent)
    assert stage.gateway.metric(
        "gateway_tokens_total", client="agent", alias="main", backend="chat", kind="completion"
    ) == pytest.approx(2 * last.usage.completion_tokens)


async def test_a_streamed_tool_call_is_put_together_by_the_sdk(stage: Stage) -> None:
    question: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    async with (
        stage.client() as client,
        client.chat.completions.stream(model="main", messages=question, tools=WEATHER) as stream,
    ):
        final = await stream.get_final_completion()
    choice = final.choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})


async def test_embeddings_come_as_the_sdk_asks_for_them(stage: Stage) -> None:
    """It asks for base64 and decodes it itself."""
    async with stage.client() as client:
        encoded = await client.embeddings.create(model="vectors", input=["one", "two"])
        plain = await client.embeddings.create(model="vectors", input=["one", "two"], encoding_format="float")
    assert encoded.model == "vectors"
    assert len(encoded.data) == 2
    for one, other in zip(encoded.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-5)


async def test_the_old_completions_answer_too(stage: Stage) -> None:
    async with stage.client() as client:
        whole = await client.completions.create(model="main", prompt="What is 12*17?", max_tokens=20)
        stream = await client.completions.create(model="main", prompt="What is 12*17?", max_tokens=20, stream=True)
        text = "".join([choice.text async for chunk in stream for choice in chunk.choices])
    assert whole.model == "main"
    assert whole.choices[0].text == text != ""


# -- errors -----------------------------------------------------------------------------------------------------------


async def test_an_unknown_model_is_not_found_and_the_likely_one_is_named(stage: Stage) -> None:
    async with stage.client() as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="mian", messages=QUESTION)
        assert caught.value.code == "model_not_found"
        assert caught.value.param == "model"
        assert "The model 'mian' does not exist" in caught.value.message
        assert "Did you mean 'main'?" in caught.value.message
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("mian")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_beyond_the_window_is_a_bad_request_that_agents_understand(stage: Stage, stream: bool) -> None:
    long: Any = [{"role": "user", "content": "word " * 60000}]
    async with stage.client(retries=2) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="main", messages=long, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert "This model's maximum context length is 32768 tokens." in caught.value.message
    assert not stage.chat.requests


async def test_a_wrong_key_and_a_foreign_alias_are_told_apart(stage: Stage) -> None:
    async with stage.client(key="wrong") as client:
        with pytest.raises(openai.AuthenticationError) as wrong:
            await client.chat.completions.create(model="main", messages=QUESTION)
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    assert wrong.value.code == "invalid_api_key"
    assert "wrong" not in wrong.value.message
    async with stage.client() as client:
        with pytest.raises(openai.PermissionDeniedError) as foreign:
            await client.chat.completions.create(model="secret", messages=QUESTION)
    assert foreign.value.code == "model_not_allowed"


async def test_a_backends_own_refusal_is_passed_on_once(stage: Stage) -> None:
    async with stage.client(retries=2) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="main", messages=QUESTION, temperature=-1)
    assert "temperature" in caught.value.message
    assert len(stage.chat.requests) == 1


async def test_a_stream_that_breaks_raises_after_what_was_said(stage: Stage) -> None:
    """It must never look finished: the SDK would take a clean end for the whole answer."""
    stage.chat.fault("die_mid", after=4, count=1)
    chunks: list[ChatCompletionChunk] = []
    async with stage.client(retries=2) as client:
        stream = await client.chat.completions.create(model="main", messages=QUESTION, stream=True)
        with pytest.raises(openai.APIError) as caught:
            await collect(stream, chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)
    assert caught.value.code == "stream_interrupted"
    assert caught.value.message == "upstream connect error: backend reset"


async def collect(stream: AsyncIterator[ChatCompletionChunk], into: list[ChatCompletionChunk]) -> None:
    async for chunk in stream:
        into.append(chunk)


async def test_a_backend_that_fails_for_a_moment_is_hidden_by_the_sdks_retries(stage: Stage) -> None:
    stage.chat.fault("status", status=500, count=2)
    async with stage.client(retries=2) as client:
        reply = await client.chat.completions.create(model="main", messages=QUESTION)
    assert reply.choices[0].message.content == "12*17 is 204."
    assert [request.status for request in stage.chat.requests] == [500, 500, 200]


async def test_without_retries_a_failed_backend_is_an_internal_server_error_that_says_who(stage: Stage) -> None:
    stage.chat.fault("status", status=500, count=1)
    async with stage.client() as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="main", messages=QUESTION)
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_error")
    assert "chat answered 500" in caught.value.message


async def test_a_pause_that_a_backend_asks_for_is_kept_by_the_sdk() -> None:
    async with stage_with(", slots: 4, queue: {max_wait: 5s}") as stage, stage.client() as client:
        stage.chat.fault("status", status=429, headers={"retry-after": "7"}, count=1)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="main", messages=QUESTION)
    assert caught.value.code == "rate_limit_exceeded"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 7


async def test_a_silent_backend_is_a_gateway_timeout_and_not_an_endless_wait() -> None:
    async with stage_with(", timeouts: {first_byte: 300ms}") as stage, stage.client() as client:
        stage.chat.fault("hang_before", count=1)
        async with asyncio.timeout(20):
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="main", messages=QUESTION, stream=True)
    assert (caught.value.status_code, caught.value.code) == (504, "upstream_timeout")
