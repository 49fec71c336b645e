"""`/tokenize` and `/detokenize` through the gateway, in vLLM's words, by a real llama-server."""

from __future__ import annotations

from typing import Any

import pytest

from .processes import RealServer
from .questions import TOOLS, user
from .test_llama import CHAT, gateway_on


async def test_a_text_becomes_tokens_and_a_text_again(llama: RealServer) -> None:
    async with gateway_on(llama) as client:
        ask = client.gateway.client.post
        said = "Hello \u00e9\u00e8 world"
        told = (await ask("/tokenize", json={"model": "front", "prompt": said, "return_token_strs": True})).json()
        assert told.keys() == {"count", "max_model_len", "tokens", "token_strs"}
        assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) > 2
        assert all(type(one) is int for one in told["tokens"])
        assert all(type(one) is str for one in told["token_strs"])
        plain = (await ask("/tokenize", json={"model": "front", "prompt": said})).json()
        assert (plain["tokens"], plain["token_strs"]) == (told["tokens"], None)
        text = (await ask("/detokenize", json={"model": "front", "tokens": told["tokens"]})).json()["prompt"]
        assert text.endswith(said)


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS}, {"chat_template_kwargs": {"enable_thinking": False}}])
async def test_a_chat_has_as_many_tokens_as_it_is_billed_for(llama: RealServer, more: dict[str, Any]) -> None:
    async with gateway_on(llama) as client:
        body = {"model": "front", "messages": user("Hello there"), **more}
        counted = (await client.gateway.client.post("/tokenize", json=body)).json()["count"]
        chat = await client.gateway.client.post(CHAT, json={**body, "max_tokens": 2})
        assert counted == chat.json()["usage"]["prompt_tokens"]


async def test_what_it_refuses_is_told(llama: RealServer) -> None:
    async with gateway_on(llama) as client:
        ask = client.gateway.client.post
        for path, body in (("/tokenize", {"messages": [{"role": 7}]}), ("/detokenize", {"tokens": ["x"]})):
            reply = await ask(path, json={"model": "front", **body})
            assert reply.json()["error"]["message"], reply.text
            assert client.gateway.gateway.fleet["a"].health.fails == 0
