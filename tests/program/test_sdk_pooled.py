"""Embeddings with the openai SDK, and rankings as clients of Jina and Cohere ask for them, of simulated vLLMs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from simulator import SimVllm
from tests.support import RunningGateway, running_gateway


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    embedder = SimVllm(name="embedder", served=["some/embedder"], context=512, pooling=True)
    chat = SimVllm(name="chat", served=["some/model"])
    async with embedder.serve(port=0) as url, chat.serve(port=0) as chat_url:
        routes = f"""
backends:
  embedder: {{url: "{url}", serves: [embeddings, rerank, score]}}
  chat: {{url: "{chat_url}"}}
aliases: {{vectors: [embedder], main: [chat]}}
clients: {{agent: {{key: secret}}}}
"""
        async with running_gateway(routes) as running:
            await running.until_ready("embedder", "chat")
            yield running


def sdk(gateway: RunningGateway) -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(base_url=gateway.url + "/v1", api_key="secret", max_retries=0, http_client=http)


async def test_vectors_are_the_same_in_both_forms(gateway: RunningGateway) -> None:
    async with sdk(gateway) as client:
        packed = await client.embeddings.create(model="vectors", input=["one", "two"])
        plain = await client.embeddings.create(model="vectors", input=["one", "two"], encoding_format="float")
        tokens = await client.embeddings.create(model="vectors", input=[[1, 2], [3]])
    assert [len(one.embedding) for one in packed.data] == [64, 64]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-5)
    assert packed.model == "vectors"
    assert packed.usage.prompt_tokens > 0
    assert len(tokens.data) == 2
    assert gateway.gateway.fleet["embedder"].facts.pooled.dimensions == 64


@pytest.mark.parametrize("form", ["bytes", "bytes_only"])
async def test_vectors_that_are_no_json_are_refused(gateway: RunningGateway, form: Any) -> None:
    async with sdk(gateway) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.embeddings.create(model="vectors", input="one", encoding_format=form)
    assert (raised.value.code, raised.value.param) == ("invalid_request_body", "encoding_format")


async def test_a_chat_alias_says_that_it_does_not_embed(gateway: RunningGateway) -> None:
    async with sdk(gateway) as client:
        for _ in range(2):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.embeddings.create(model="main", input="one")
            assert raised.value.code == "input_unsupported"
        assert "It serves /chat/completions, /completions" in raised.value.message


async def test_a_text_over_the_window_is_told_or_cut(gateway: RunningGateway) -> None:
    long = "word " * 2000
    async with sdk(gateway) as client:
        for given in (long, [long, "short"]):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.embeddings.create(model="vectors", input=given)
            assert raised.value.code == "context_length_exceeded"
            assert "512 tokens" in raised.value.message
        cut = await client.embeddings.create(model="vectors", input=long, extra_body={"truncate_prompt_tokens": -1})
        assert len(cut.data) == 1
    headers = {"authorization": "Bearer secret"}
    for more, status in (({}, 200), ({"truncate": True}, 200), ({"truncate": False}, 400)):
        body = {"model": "vectors", "input": long, **more}
        answer = await gateway.client.post("/api/embed", json=body, headers=headers)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_documents_are_ranked(gateway: RunningGateway, path: str) -> None:
    body = {"model": "vectors", "query": "pear", "documents": ["car", "pear", "sea"], "top_n": 2}
    answer = await gateway.client.post(path, json=body, headers={"authorization": "Bearer secret"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["model"] == "vectors"
    assert len(found["results"]) == 2
    best = found["results"][0]
    assert (best["index"], best["document"]["text"]) == (1, "pear")
    assert best["relevance_score"] == pytest.approx(1.0)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
async def test_pairs_are_scored(gateway: RunningGateway, path: str) -> None:
    body = {"model": "vectors", "text_1": "pear", "text_2": ["car", "pear"]}
    answer = await gateway.client.post(path, json=body, headers={"authorization": "Bearer secret"})
    assert answer.status_code == 200, answer.text
    assert [one["index"] for one in answer.json()["data"]] == [0, 1]
    refused = await gateway.client.post(path, json=body)
    assert refused.status_code == 401


async def test_a_server_that_embeds_gets_no_canary(gateway: RunningGateway) -> None:
    answer = await gateway.client.post(
        "/v1/chat/completions",
        json={"model": "vectors", "messages": [{"role": "user", "content": "hi"}]},
        headers={"authorization": "Bearer secret"},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "input_unsupported")
    state = gateway.gateway.fleet["embedder"]
    assert (state.traits.chats, state.health.canaried) == (False, False)
