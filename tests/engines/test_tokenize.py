"""Prompt tokens as vLLM counts them, or None: nothing that happens there may hurt the request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config.snapshot import Backend, Secret
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, Endpoint
from gateway.domain.health_state import State
from gateway.domain.request import InferenceRequest, parse
from gateway.domain.upstream import ConnectFailure, StaleConnection, UpstreamClient, UpstreamFailure
from gateway.engines import tokenize
from gateway.engines.tokenize import count_tokens
from gateway.transport.h1 import open_client
from simulator import SimVllm
from tests.engines.scripted import ScriptedClient, ScriptedResponse, state_of
from tests.scripted import Turn, answer, json_answer, scripted

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
HELLO = [{"role": "user", "content": "hello there"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def request(endpoint: Endpoint = CHAT, **fields: Any) -> InferenceRequest:
    given = {"model": "alias", **({"messages": HELLO} if endpoint is CHAT else {}), **fields}
    return parse(endpoint, json.dumps(given).encode())


def vllm(client: UpstreamClient | None, **changed: Any) -> BackendState:
    settings = {"url": "http://127.0.0.1:1", "model": "served", **changed}
    return state_of(Backend("v", **settings), client)


@asynccontextmanager
async def connected(url: str, **changed: Any) -> AsyncIterator[BackendState]:
    box = Backend("v", url=url, **{"model": "served", **changed})
    client = open_client(box.origin, connect_timeout=3.0)
    try:
        yield state_of(box, client)
    finally:
        await client.close()


async def asked(body: InferenceRequest, **changed: Any) -> tuple[str, Any, dict[str, str]]:
    client = ScriptedClient(ScriptedResponse(200, [b'{"count":7,"max_model_len":9,"tokens":[]}']))
    assert await count_tokens(vllm(client, **changed), body) == 7
    return *client.sent[0], client.headers[0]


# -- what is asked ----------------------------------------------------------------------------------------------------


async def test_a_chat_is_asked_with_everything_that_its_template_sees() -> None:
    said: dict[str, Any] = {
        "tools": [TOOL],
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    path, body, headers = await asked(request(**said, temperature=0.5, max_tokens=9, stream=True))
    assert path == "/tokenize"
    assert body == {"model": "served", "messages": HELLO, **said}
    assert headers == {"content-type": "application/json"}


async def test_thoughts_are_counted_under_either_of_their_names() -> None:
    """vLLM 0.32 renders both in a chat, and its /tokenize only the newer one."""
    old = {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    new = {"role": "assistant", "content": "b", "reasoning": "hm"}
    both = {**new, "reasoning_content": "other"}
    for given, counted in ((old, new), (new, new), (both, new)):
        _, body, _ = await asked(request(messages=[*HELLO, given, *HELLO]))
        assert body["messages"] == [*HELLO, counted, *HELLO]


async def test_a_completion_is_asked_with_its_prompt() -> None:
    _, body, _ = await asked(request(COMPLETIONS, prompt="Once", add_special_tokens=False, max_tokens=5))
    assert body == {"model": "served", "prompt": "Once", "add_special_tokens": False}


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://127.0.0.1:1", "/tokenize"),
        ("http://127.0.0.1:1/v1", "/tokenize"),
        ("http://127.0.0.1:1/spark", "/spark/tokenize"),
    ],
)
async def test_it_lives_beside_the_api_and_not_below_it(url: str, path: str) -> None:
    assert (await asked(request(), url=url))[0] == path


async def test_the_key_goes_along() -> None:
    assert (await asked(request(), api_key=Secret("k")))[2]["authorization"] == "Bearer k"


async def test_a_model_that_is_not_known_yet_is_left_out() -> None:
    assert "model" not in (await asked(request(), model=None))[1]


PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
SOUND = [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]


@pytest.mark.parametrize(
    ("body", "engine"),
    [
        (request(), "ollama"),
        (request(), "openai"),
        (request(), "litellm"),
        (request(messages=[{"role": "user", "content": PICTURE}]), "vllm"),
        (request(messages=[{"role": "user", "content": SOUND}]), "vllm"),
        (request(COMPLETIONS, prompt=["one", "two"]), "vllm"),
        (request(COMPLETIONS, prompt=[1, 2]), "vllm"),
        (request(COMPLETIONS), "vllm"),
        (request(EMBEDDINGS, input="x"), "vllm"),
    ],
)
async def test_where_it_cannot_tell_nobody_is_asked(body: InferenceRequest, engine: str) -> None:
    client = ScriptedClient()
    assert await count_tokens(vllm(client, engine=engine), body) is None
    assert client.sent == []


async def test_a_backend_without_a_client_is_not_asked() -> None:
    assert await count_tokens(vllm(None), request()) is None


def server(name: str, client: UpstreamClient | None) -> BackendState:
    return vllm(client, engine="openai", server=name) if name not in ("vllm", "llamacpp") else vllm(client, engine=name)


@pytest.mark.parametrize(
    "reply",
    [b"", b"7", b"[]", b"{}", b'{"tokens":7.5}', b'{"tokens":null}', b'{"tokens":-1}', b'{"tokens":[]}',
     b'{"tokens":"7"}', b'{"count":7}', b'{"tokens":{}}', b'{"tokens":[1,]}', b'{"tokens":' + b"[" * 5000],
)  # fmt: skip
async def test_an_answer_without_a_number_counts_nothing(reply: bytes) -> None:
    client = ScriptedClient(ScriptedResponse(200, [reply]))
    assert await count_tokens(server("llamacpp", client), request(COMPLETIONS, prompt="Once")) is None


# -- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "count"), [("tokenize", 5), ("tokenize_chat", 12)])
async def test_the_answer_of_a_real_vllm_is_read(name: str, count: int) -> None:
    body = (CAPTURES / f"{name}.txt").read_text().rsplit("\n\n", 1)[1]
    client = ScriptedClient(ScriptedResponse(200, [body.encode()]))
    assert await count_tokens(vllm(client), request()) == count


@pytest.mark.parametrize(
    "fields", [{}, {"tools": [TOOL]}, {"messages": [*HELLO, {"role": "assistant", "content": "x" * 5000}]}]
)
async def test_a_chat_has_as_many_tokens_as_it_is_billed_for(fields: dict[str, Any]) -> None:
    sim = SimVllm(served=["served"], api_key="k")
    async with sim.serve() as url, connected(url, api_key=Secret("k")) as state:
        body = request(**fields)
        count = await count_tokens(state, body)
        assert state.client is not None
        sent = msgspec.json.encode({**body.fields, "model": "served"})
        headers = [("content-type", "application/json"), ("authorization", "Bearer k")]
        reply = await state.client.send("POST", "/v1/chat/completions", headers, sent)
        usage = json.loads(await reply.read_all(100_000))["usage"]
        reply.release()
    assert count == usage["prompt_tokens"]


async def test_a_completion_has_as_many_tokens_as_its_text() -> None:
    async with SimVllm(served=["served"]).serve() as url, connected(url) as state:
        assert await count_tokens(state, request(COMPLETIONS, prompt="x" * 400)) == 100


# -- what may happen --------------------------------------------------------------------------------------------------


def untouched(state: BackendState) -> bool:
    return (
        state.health.state is State.READY
        and not state.health.fails
        and not state.facts.lacks
        and not state.evidence.refused_since
    )


def ready(state: BackendState) -> BackendState:
    state.health.alive(0.0)
    assert untouched(state)
    return state


async def reset(turn: Turn) -> None:
    turn.reset()


@pytest.mark.parametrize(
    "raw",
    [
        answer(b"<html>"),
        answer(b"\xff"),
        answer(b"[" * 100_000),
        answer(b""),
        json_answer({"tokens": [1, 2]}),
        json_answer({"count": "many"}),
        json_answer({"count": -1}),
        json_answer({"count": None}),
        json_answer({"detail": "Not Found"}, "404 Not Found"),
        json_answer({"error": "Unauthorized"}, "401 Unauthorized"),
        json_answer({"count": 5}, "500 Internal Server Error"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"not http\r\n\r\n",
    ],
)
async def test_junk_is_no_count_and_no_fault_of_the_backend(raw: bytes) -> None:
    async def junk(turn: Turn) -> None:
        await turn.send(raw)
        turn.close()

    async with scripted(junk) as backend, connected(backend.url) as state:
        ready(state)
        assert await count_tokens(state, request()) is None
        assert len(backend.turns) >= 1
        assert untouched(state)


async def test_a_broken_or_refused_connection_is_no_count() -> None:
    async with scripted(reset) as backend, connected(backend.url) as state:
        assert await count_tokens(ready(state), request()) is None
        assert untouched(state)
    async with connected(backend.url) as state:  # nobody listens there any more
        assert await count_tokens(ready(state), request()) is None
        assert untouched(state)


async def test_silence_ends_with_the_budget_and_the_connection_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "BUDGET", 0.05)
    lost = asyncio.Event()

    async def silent(turn: Turn) -> None:
        await turn.until_lost()
        lost.set()

    async with scripted(silent) as backend, connected(backend.url) as state:
        async with asyncio.timeout(5):
            assert await count_tokens(ready(state), request()) is None
            await lost.wait()
        assert untouched(state)


async def test_a_body_that_does_not_end_ends_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "BUDGET", 0.2)

    async def slow(turn: Turn) -> None:
        await turn.send(b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"count":5,')
        await turn.until_lost()

    async with scripted(slow) as backend, connected(backend.url) as state, asyncio.timeout(5):
        assert await count_tokens(state, request()) is None


async def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "ANSWER_MOST", 100)

    async def long(turn: Turn) -> None:
        await turn.send(json_answer({"count": 5, "tokens": [1] * 1000}))

    async with scripted(long) as backend, connected(backend.url) as state:
        assert await count_tokens(state, request()) is None


class Failing:
    """Raises the given failures, then answers; keeps how it was asked."""

    connect_timeout = 3.0

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.fresh: list[bool] = []
        self.response = ScriptedResponse(200, [b'{"count":7}'])

    async def send(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | memoryview,
        *,
        fresh: bool = False,
    ) -> ScriptedResponse:
        self.fresh.append(fresh)
        if self.failures:
            raise self.failures.pop(0)
        return self.response

    async def close(self) -> None:
        pass


async def test_a_stale_connection_is_replaced_once() -> None:
    client = Failing(StaleConnection())
    assert await count_tokens(vllm(client), request()) == 7
    assert client.fresh == [False, True]
    assert client.response.released == 1
    client = Failing(StaleConnection(), StaleConnection())
    assert await count_tokens(vllm(client), request()) is None


@pytest.mark.parametrize("failure", [ConnectFailure(), UpstreamFailure("x"), ValueError("a bug"), OSError(5, "x")])
async def test_whatever_is_raised_stays_here(failure: Exception) -> None:
    client = Failing(failure)
    assert await count_tokens(vllm(client), request()) is None
    assert client.fresh == [False]


async def test_a_client_that_leaves_is_not_kept_waiting() -> None:
    asked = asyncio.Event()

    async def silent(turn: Turn) -> None:
        asked.set()
        await turn.until_lost()

    async with scripted(silent) as backend, connected(backend.url) as state:
        task = asyncio.create_task(count_tokens(state, request()))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
