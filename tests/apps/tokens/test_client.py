"""Tokens and their text in vLLM's words, whatever the server's own are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.apps.tokens.client import TokenClient, TokenizeError
from gateway.domain.backend import BackendState
from gateway.domain.upstream import ProtocolFailure, UpstreamClient
from gateway.large_bodies import LARGE
from tests.engines.scripted import ScriptedClient, ScriptedResponse
from tests.engines.test_tokenize import HELLO, server

Fields = dict[str, Any]


def raw(fields: Fields) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value).encode()) for name, value in fields.items()}


def asker(name: str, client: UpstreamClient) -> TokenClient:
    state: BackendState = server(name, client)
    return TokenClient(state, "me", lambda size: None)


def replies(*bodies: object) -> ScriptedClient:
    return ScriptedClient(*(ScriptedResponse(200, [json.dumps(body).encode()]) for body in bodies))


PROMPT: Fields = {"model": "alias", "prompt": "Hi there", "return_token_strs": True}
CHAT: Fields = {"model": "alias", "messages": HELLO, "tools": [], "add_generation_prompt": False}


@pytest.mark.parametrize("answer", [[], {}, {"tokens": 7}, {"tokens": None}, "text", {"count": 3}])
async def test_what_holds_no_tokens_is_a_failure(answer: object) -> None:
    with pytest.raises(ProtocolFailure, match="answered without `tokens`"):
        await asker("vllm", replies(answer)).tokens(raw(PROMPT))


@pytest.mark.parametrize("answer", [[], {}, {"prompt": 7}, {"prompt": None}, "text"])
async def test_what_holds_no_text_is_a_failure(answer: object) -> None:
    with pytest.raises(ProtocolFailure, match="answered without `prompt`"):
        await asker("vllm", replies(answer)).text(raw({"tokens": [1]}))
    with pytest.raises(ProtocolFailure, match="answered without `prompt`"):
        await asker("llamacpp", replies(answer)).tokens(raw(CHAT))


ODD_PIECES: list[list[Any]] = [[7], [{}], [{"id": 1}], [{"piece": "x"}]]
ODD_PIECES += [[{"id": 1, "piece": piece}] for piece in (["x"], [300], [None], [[1]])]


@pytest.mark.parametrize("pieces", ODD_PIECES)
async def test_pieces_that_cannot_be_read_are_a_failure(pieces: list[Any]) -> None:
    with pytest.raises(ProtocolFailure, match="answered without `tokens`"):
        await asker("llamacpp", replies({"tokens": pieces})).tokens(raw(PROMPT))


async def test_an_error_is_told_as_it_came() -> None:
    client = ScriptedClient(ScriptedResponse(404, [b'{"detail":"Not Found"}']))
    with pytest.raises(TokenizeError) as error:
        await asker("vllm", client).tokens(raw(PROMPT))
    assert (error.value.status, error.value.body) == (404, b'{"detail":"Not Found"}')


async def test_a_long_answer_is_counted_as_it_comes_and_told_whole() -> None:
    sizes: list[int] = []
    told = json.dumps({"count": LARGE, "max_model_len": 9, "tokens": [1] * LARGE, "token_strs": None}).encode()
    client = ScriptedClient(ScriptedResponse(200, [told[:1000], told[1000:]]))
    answer = await TokenClient(server("vllm", client), "me", sizes.append).tokens(raw(PROMPT))
    assert json.loads(answer) == json.loads(told)
    assert sum(sizes) == len(told)
