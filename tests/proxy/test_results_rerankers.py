"""A llama-server that was started to rank gives vectors that mean nothing, whatever they look like."""

from __future__ import annotations

import pytest

from tests.routing.test_pooled_chains import EMBEDDINGS, RERANK, answered_by, broken, embeds, pair, ranks, refuses
from tests.scripted import Script, Turn

LLAMA = ", engine: llamacpp"
NO_RANKING = refuses("501 Not Implemented", "This server does not support reranking. Start it with `--reranking`")


def by_path(rerank: Script, size: int = 4) -> Script:
    async def answer(turn: Turn) -> None:
        await (rerank if turn.path == RERANK else embeds(size))(turn)

    return answer


async def test_vectors_of_a_server_that_ranks_reach_nobody() -> None:
    async with pair(by_path(ranks), by_path(NO_RANKING), more=(LLAMA, LLAMA)) as two:
        assert answered_by(await two.ask(EMBEDDINGS, input="x")) == "b"
        assert answered_by(await two.ask(RERANK, query="x", documents=["y", "z"])) == "a"
        assert answered_by(await two.ask(EMBEDDINGS, input="x")) == "b"
        assert two.gateway.gateway.fleet["a"].health.fails == 0
        asked = [turn for turn in two.a.turns if turn.path == RERANK]
        assert len(asked) == 2, "by the gateway once, and by the client"


async def test_where_no_other_backend_embeds_the_client_is_told_why() -> None:
    async with pair(broken, by_path(ranks), more=("", LLAMA)) as two:
        reply = await two.gateway.client.post(EMBEDDINGS, json={"model": "second", "input": "x"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "input_unsupported")
        assert "it was started to rank, and embeds nothing" in reply.json()["error"]["message"]


@pytest.mark.parametrize("rerank", [NO_RANKING, broken], ids=["refused", "no answer"])
async def test_a_server_that_embeds_is_asked_once_whether_it_ranks(rerank: Script) -> None:
    async with pair(by_path(rerank), broken, more=(LLAMA, "")) as two:
        for _ in range(3):
            assert answered_by(await two.ask(EMBEDDINGS, input="x")) == "a"
        assert [turn.path for turn in two.a.turns].count(RERANK) == 1


async def test_a_server_that_does_both_is_not_asked() -> None:
    async with pair(by_path(ranks), broken) as two:
        assert answered_by(await two.ask(EMBEDDINGS, input="x")) == "a"
        assert [turn.path for turn in two.a.turns] == [EMBEDDINGS]
