"""An alias gives the vectors of one model, and each request a whole set of them, whichever backend answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.scripted import RawReply, Script, ScriptedBackend, Turn, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway

EMBEDDINGS, RERANK, SCORE, CHAT = "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/chat/completions"
NOT_SERVED = (b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 22\r\n\r\n"
              b'{"detail":"Not Found"}')  # fmt: skip


def embeds(size: int, *, count: int | None = None) -> Script:
    """Vectors of this size, for each input, or for `count` of them."""

    async def answer(turn: Turn) -> None:
        given = turn.json["input"]
        inputs = given if isinstance(given, list) else [given]
        data = [{"index": i, "embedding": [0.5] * size} for i in range(len(inputs) if count is None else count)]
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        await turn.send(json_answer({"object": "list", "model": "served", "data": data, "usage": usage}))

    return answer


async def ranks(turn: Turn) -> None:
    results = [{"index": i, "relevance_score": 0.5} for i, _ in enumerate(turn.json["documents"])]
    await turn.send(json_answer({"model": "served", "results": results, "usage": {"total_tokens": 9}}))


def refuses(status: str, message: str) -> Script:
    async def answer(turn: Turn) -> None:
        await turn.send(json_answer({"error": {"message": message, "type": "x", "code": None}}, status))

    return answer


async def broken(turn: Turn) -> None:
    await turn.send(json_answer({"error": {"message": "broken"}}, "500 Internal Server Error"))


class Pair:
    def __init__(self, gateway: RunningGateway, a: ScriptedBackend, b: ScriptedBackend) -> None:
        self.gateway, self.a, self.b = gateway, a, b

    async def ask(self, path: str, **body: Any) -> RawReply:
        return await raw_post(self.gateway.url, {"model": "both", **body}, path)

    async def explained(self, **request: Any) -> dict[str, Any]:
        asked = {"alias": "both", "request": request}
        answer = await self.gateway.client.post("/admin/explain", json=asked)
        found: dict[str, Any] = answer.json()
        return found


@asynccontextmanager
async def pair(
    a: Script, b: Script, *, models: tuple[str, str] = ("m", "m"), more: tuple[str, str] = ("", "")
) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(scripted(script)) for script in (a, b)]
        for backend, model in zip(backends, models, strict=True):
            backend.model = model
        lines = [
            f'  {name}: {{url: "{backend.url}"{own}}}' for name, backend, own in zip("ab", backends, more, strict=True)
        ]
        health = "defaults: {health: {fail_after: 10000, canary: none}}"
        routes = "\n".join([health, "backends:", *lines, "aliases: {both: [a, b], second: [b]}"])
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("a", "b")
        yield Pair(gateway, *backends)


def answered_by(reply: RawReply) -> str:
    assert reply.status == 200, reply.body
    return reply.headers["x-gateway-backend"]


@pytest.mark.parametrize("wrong", [embeds(2, count=1), embeds(0), broken], ids=["fewer", "empty", "broken"])
async def test_the_next_backend_with_the_same_model_answers(wrong: Script) -> None:
    async with pair(wrong, embeds(2)) as two:
        reply = await two.ask(EMBEDDINGS, input=["x", "y"])
        assert answered_by(reply) == "b"
        assert reply.json["model"] == "both"


async def test_a_backend_with_another_model_is_never_asked() -> None:
    async with pair(broken, embeds(2), models=("one", "other")) as two:
        reply = await two.ask(EMBEDDINGS, input="x")
        assert (reply.status, two.b.turns) == (502, [])
        assert b"embeds with other, and this alias with one (a): they cannot be compared" in reply.body
        (_, second) = (await two.explained(input="x"))["steps"]
        assert second["backends"][0]["kind"] == "incapable"
        assert "they cannot be compared" in second["backends"][0]["reasons"][0]
        assert answered_by(await raw_post(two.gateway.url, {"model": "second", "input": "x"}, EMBEDDINGS)) == "b"


async def test_a_pooled_model_under_two_names_is_one_model() -> None:
    same = ", embedding_model: bge-m3"
    async with pair(broken, embeds(2), models=("BAAI/bge-m3", "bge-m3:latest"), more=(same, same)) as two:
        assert answered_by(await two.ask(EMBEDDINGS, input="x")) == "b"


async def test_vectors_of_another_size_are_not_mixed_in() -> None:
    """Two checkpoints under one name."""
    async with pair(embeds(2), embeds(3)) as two:
        assert answered_by(await two.ask(EMBEDDINGS, input="x")) == "a"
        two.a.play(broken)
        for _ in range(2):
            reply = await two.ask(EMBEDDINGS, input="x")
            assert reply.status == 502
            assert b"gives vectors of 3 numbers, and this alias gives 2" in reply.body
        assert len(two.b.turns) == 1, "after its first answer it is not asked again"


async def test_a_declared_size_counts_before_any_answer() -> None:
    async with pair(broken, embeds(3), more=(", dimensions: 2", "")) as two:
        reply = await two.ask(EMBEDDINGS, input="x")
        assert reply.status == 502
        assert b"gives vectors of 3 numbers, and this alias gives 2" in reply.body


async def test_smaller_vectors_that_were_asked_for_teach_nothing() -> None:
    async def cut(turn: Turn) -> None:
        await embeds(turn.json.get("dimensions", 4))(turn)

    async with pair(cut, embeds(4)) as two:
        assert len((await two.ask(EMBEDDINGS, input="x", dimensions=2)).json["data"][0]["embedding"]) == 2
        assert len((await two.ask(EMBEDDINGS, input="x")).json["data"][0]["embedding"]) == 4
        two.a.play(broken)
        assert answered_by(await two.ask(EMBEDDINGS, input="x")) == "b"
        reply = await two.ask(EMBEDDINGS, input="x", dimensions=2)
        assert reply.status == 502
        assert b"whatever `dimensions` says" in reply.body


async def test_rankings_of_different_models_may_stand_in_for_each_other() -> None:
    async with pair(broken, ranks, models=("one", "other")) as two:
        for path in (RERANK, "/rerank", "/v2/rerank"):
            reply = await two.ask(path, query="q", documents=["x", "y"])
            assert (answered_by(reply), reply.json["model"]) == ("b", "both")
        metrics = (await two.gateway.client.get("/metrics")).text
        counted = [line for line in metrics.splitlines() if line.startswith("gateway_tokens_total{")]
        assert 'gateway_tokens_total{alias="both",backend="b",client="open",kind="prompt"} 27.0' in counted


@pytest.mark.parametrize(
    "message",
    [
        "batch size 3 > maximum allowed batch size 2",
        "Invalid 'input': array too long. Expected an array with maximum length 2, but got an array with length 3 "
        "instead.",
        "invalid request: total number of texts must be at most 2 - received 3.",
        "<400> InternalError.Algo.InvalidParameter: Value error, batch size is invalid, it should not be larger than "
        "2.: input.contents",
    ],
)
async def test_a_refused_batch_teaches_its_limit(message: str) -> None:
    async with pair(refuses("422 Unprocessable Entity", message), embeds(2)) as two:
        assert answered_by(await two.ask(EMBEDDINGS, input=["x", "y", "z"])) == "b"
        two.a.play(embeds(2))
        assert answered_by(await two.ask(EMBEDDINGS, input=["x", "y", "z"])) == "b"
        assert two.a.turns == [], "what it does not take is not sent there again"
        assert answered_by(await two.ask(EMBEDDINGS, input=["x", "y"])) == "a"


async def test_a_declared_batch_limit_is_told() -> None:
    async with pair(embeds(2), embeds(2), more=(", max_batch: 2", ", max_batch: 3")) as two:
        assert answered_by(await two.ask(EMBEDDINGS, input=["x", "y", "z"])) == "b"
        reply = await two.ask(EMBEDDINGS, input=["x"] * 4)
        assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
        assert b"b takes at most 3 inputs in one request (max_batch), and this one has 4" in reply.body


async def test_a_batch_that_would_keep_a_server_from_all_others_is_refused() -> None:
    async with pair(embeds(2), embeds(2), more=("", ", max_batch: 20000")) as two:
        assert answered_by(await two.ask(EMBEDDINGS, input=["x"] * 16_385)) == "b"
        assert two.a.turns == []
        reply = await two.ask(EMBEDDINGS, input=["x"] * 20_001)
        assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
        assert b"a takes at most 16,384 inputs in one request" in reply.body


async def test_the_pooled_model_of_an_alias_is_told_and_remembered() -> None:
    async def only_embeds(turn: Turn) -> None:
        await (embeds(2)(turn) if "input" in turn.json else turn.send(NOT_SERVED))

    async with pair(only_embeds, only_embeds) as two:
        assert answered_by(await two.ask(EMBEDDINGS, input="x")) == "a"
        hello = [{"role": "user", "content": "hi"}]
        for _ in range(2):
            reply = await two.ask(CHAT, messages=hello)
            assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
        assert b"It serves /embeddings" in reply.body
        two.a.turns.clear()
        await two.ask(CHAT, messages=hello)
        assert two.a.turns == []


async def test_a_declared_embedder_is_never_asked_to_chat() -> None:
    serves = ", serves: [embeddings]"
    async with pair(embeds(2), embeds(2), more=(serves, serves)) as two:
        reply = await two.ask(CHAT, messages=[{"role": "user", "content": "hi"}])
        assert (reply.status, reply.json["error"]["code"]) == (400, "input_unsupported")
        assert b"does not serve /chat/completions (serves: embeddings)" in reply.body
        assert b"It serves /embeddings" in reply.body
        assert (await two.ask(RERANK, query="q", documents=["x"])).status == 400
        assert (await two.ask(SCORE, text_1="q", text_2="x")).status == 400
        assert (two.a.turns, two.b.turns) == ([], [])
        listed = (await two.gateway.client.get("/v1/models")).json()["data"]
        assert listed == [], "it is no alias of chats"


async def test_text_embeddings_inference_says_what_it_is_not() -> None:
    refusal = refuses("424 Failed Dependency", "model is not a re-ranker model")
    async with pair(refusal, ranks) as two:
        for _ in range(2):
            assert answered_by(await two.ask(RERANK, query="q", documents=["x"])) == "b"
        assert len(two.a.turns) == 2, "the request, and a harmless one; then it is known"
