"""llama-server as a server of embeddings and as a reranker, as a client of the gateway sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support import RunningGateway, running_gateway

from .conftest import Start
from .processes import RealServer

EMBEDDINGS, RERANK, SCORE = "/v1/embeddings", "/v1/rerank", "/v1/score"
SIZE = 96  # numbers in a vector of the taught model


@asynccontextmanager
async def gateway_on(server: RealServer, more: str = "") -> AsyncIterator[RunningGateway]:
    routes = f"backends: {{a: {{engine: llamacpp, url: '{server.url}'{more}}}}}\naliases: {{front: [a]}}"
    async with running_gateway(routes) as gateway:
        await gateway.until_ready("a")
        yield gateway


async def asked(gateway: RunningGateway, path: str, **body: Any) -> tuple[int, Any]:
    answer = await gateway.client.post(path, json={"model": "front", **body})
    return answer.status_code, answer.json()


async def test_vectors_in_both_forms(start: Start) -> None:
    server = start("llama", "-c", "2048", "--embedding", "--pooling", "mean")
    async with gateway_on(server, ", serves: [embeddings]") as gateway:
        for form in ("float", "base64"):
            status, found = await asked(gateway, EMBEDDINGS, input=["one", "two"], encoding_format=form)
            assert (status, found["model"], len(found["data"])) == (200, "front", 2)
        assert gateway.gateway.fleet["a"].facts.pooled.dimensions == SIZE
        status, refused = await asked(gateway, EMBEDDINGS, input="one", dimensions=8)
        assert (status, refused["error"]["code"]) == (400, "input_unsupported")
        assert f"gives vectors of {SIZE} numbers, whatever `dimensions` says" in refused["error"]["message"]
        assert (await asked(gateway, RERANK, query="a", documents=["b"]))[0] == 400
        assert gateway.gateway.fleet["a"].health.fails == 0


async def test_a_reranker_ranks_and_embeds_nothing(start: Start) -> None:
    server = start("llama", "-c", "2048", "--reranking")
    async with gateway_on(server) as gateway:
        status, refused = await asked(gateway, EMBEDDINGS, input=["a"])
        assert (status, refused["error"]["code"]) == (400, "input_unsupported")
        assert "answers with vectors of zeros" in refused["error"]["message"]
        status, ranking = await asked(gateway, RERANK, query="hi", documents=["a", "bb", "ccc"], top_n=2)
        assert (status, ranking["model"], len(ranking["results"])) == (200, "front", 2)
        assert (await asked(gateway, SCORE, text_1="a", text_2="b"))[0] == 400
        assert gateway.gateway.fleet["a"].health.fails == 0


async def test_a_server_of_chats_says_that_it_does_neither(llama: RealServer) -> None:
    async with gateway_on(llama) as gateway:
        bodies: dict[str, dict[str, Any]] = {EMBEDDINGS: {"input": "a"}, RERANK: {"query": "a", "documents": ["b"]}}
        for path, body in bodies.items():
            for _ in range(2):
                status, refused = await asked(gateway, path, **body)
                assert (status, refused["error"]["code"]) == (400, "input_unsupported")
            assert "It serves /chat/completions, /completions" in refused["error"]["message"]
