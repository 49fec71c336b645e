"""A real vLLM that embeds and ranks, and one that ranks with a classifier, behind the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.support import RunningGateway, running_gateway

from .servers import VllmServer

EMBEDDINGS, RERANK, SCORE, CHAT = "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/chat/completions"
POOLS = ("--runner", "pooling", "--convert")
SIZE = 64  # numbers in a vector of the tiny model


def pooling(name: str, venv: Path, pids: Path, *flags: str) -> VllmServer:
    return VllmServer(name, pids, (*POOLS, *flags), venv, window=512, env={"UNSCRIPTED": "1"})


@pytest.fixture(scope="module")
def embedder(venv: Path, pids: Path) -> Iterator[VllmServer]:
    server = pooling("embedder", venv, pids, "embed", "--hf-overrides", '{"is_matryoshka": true}')
    server.up()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def scorer(venv: Path, pids: Path) -> Iterator[VllmServer]:
    server = pooling("scorer", venv, pids, "classify", "--hf-overrides", '{"num_labels": 1}')
    server.up()
    yield server
    server.stop()


@asynccontextmanager
async def gateway_on(server: VllmServer, more: str = "", **settings: str) -> AsyncIterator[RunningGateway]:
    backends = "\n  ".join(["backends:", server.routes("a", **settings), *more.splitlines()])
    async with running_gateway(f"{backends}\naliases: {{front: [a{', b' if more else ''}]}}") as gateway:
        await gateway.until_ready("a")
        yield gateway


def sdk(gateway: RunningGateway) -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0, http_client=http)


async def asked(gateway: RunningGateway, path: str, **body: Any) -> tuple[int, Any]:
    answer = await gateway.client.post(path, json={"model": "front", **body})
    return answer.status_code, answer.json()


async def test_vectors_in_both_forms_and_smaller_ones(embedder: VllmServer) -> None:
    async with gateway_on(embedder) as gateway, sdk(gateway) as client:
        packed = await client.embeddings.create(model="front", input=["one", "two"])
        plain = await client.embeddings.create(model="front", input=["one", "two"], encoding_format="float")
        small = await client.embeddings.create(model="front", input="one", dimensions=8)
        half = {"embed_dtype": "float16", "encoding_format": "base64"}
        status, _ = await asked(gateway, EMBEDDINGS, input="one", **half)
        assert gateway.gateway.fleet["a"].facts.pooled.dimensions == SIZE
    assert [len(one.embedding) for one in packed.data] == [SIZE, SIZE]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-2)
    assert (len(small.data[0].embedding), status) == (8, 200)
    assert packed.model == "front"
    assert packed.usage.prompt_tokens > 0


async def test_documents_are_ranked_and_pairs_scored(embedder: VllmServer) -> None:
    async with gateway_on(embedder) as gateway:
        for path in (RERANK, "/rerank", "/v2/rerank"):
            status, ranking = await asked(gateway, path, query="hi", documents=["there", "hi", "so"], top_n=2)
            assert (status, ranking["model"], len(ranking["results"])) == (200, "front", 2)
            assert ranking["results"][0]["index"] == 1
        for sides in ({"text_1": "hi", "text_2": ["hi", "there"]}, {"queries": ["hi", "a"], "documents": ["hi", "b"]}):
            status, scored = await asked(gateway, SCORE, **sides)
            assert (status, len(scored["data"])) == (200, 2)


async def test_what_it_refuses_is_the_clients(embedder: VllmServer) -> None:
    async with gateway_on(embedder) as gateway, sdk(gateway) as client:
        long = "hello world " * 900
        for given in (long, ["a", long]):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.embeddings.create(model="front", input=given)
            assert raised.value.code == "context_length_exceeded"
        cut = await client.embeddings.create(model="front", input=long, extra_body={"truncate_prompt_tokens": -1})
        assert len(cut.data) == 1
        status, refused = await asked(gateway, RERANK, query="hi", documents=[long])
        assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
        wrong: dict[str, dict[str, Any]] = {
            EMBEDDINGS: {"input": []},
            RERANK: {"query": "hi", "documents": []},
            SCORE: {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]},
        }
        for path, body in wrong.items():
            assert (await asked(gateway, path, **body))[0] == 400
        assert gateway.gateway.fleet["a"].health.fails == 0


async def test_it_does_not_chat_and_that_is_remembered(embedder: VllmServer) -> None:
    async with gateway_on(embedder) as gateway:
        assert (await asked(gateway, EMBEDDINGS, input="hi"))[0] == 200
        for _ in range(2):
            status, refused = await asked(gateway, CHAT, messages=[{"role": "user", "content": "hi"}], max_tokens=4)
            assert (status, refused["error"]["code"]) == (400, "input_unsupported")
        assert "It serves /embeddings" in refused["error"]["message"]
        assert "endpoint:chat" in gateway.gateway.fleet["a"].facts.lacks


async def test_a_classifier_ranks_and_scores_but_embeds_nothing(scorer: VllmServer) -> None:
    async with gateway_on(scorer) as gateway:
        status, ranking = await asked(gateway, RERANK, query="hi", documents=["there", "so"])
        assert (status, sorted(one["index"] for one in ranking["results"])) == (200, [0, 1])
        status, scored = await asked(gateway, SCORE, text_1="hi", text_2=["there", "so"])
        assert (status, len(scored["data"])) == (200, 2)
        for _ in range(2):
            status, refused = await asked(gateway, EMBEDDINGS, input="hi")
            assert (status, refused["error"]["code"]) == (400, "input_unsupported")
        assert "It serves /rerank, /score" in refused["error"]["message"]


async def test_a_model_that_writes_text_serves_none_of_it(plain: VllmServer) -> None:
    async with gateway_on(plain) as gateway:
        bodies: dict[str, dict[str, Any]] = {
            EMBEDDINGS: {"input": "hi"},
            RERANK: {"query": "hi", "documents": ["a"]},
            SCORE: {"text_1": "a", "text_2": "b"},
        }
        for path, body in bodies.items():
            for _ in range(2):
                status, refused = await asked(gateway, path, **body)
                assert (status, refused["error"]["code"]) == (400, "input_unsupported")
            assert "It serves /chat/completions, /completions" in refused["error"]["message"]
