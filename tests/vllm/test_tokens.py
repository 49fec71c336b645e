"""`/tokenize` and `/detokenize` through the gateway are vLLM's own, and count what an answer is billed for."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from .servers import VllmServer
from .test_messages import gateway_of

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a text": ("/tokenize", {"prompt": "Hello \u00e9\u00e8 world", "return_token_strs": True}),
    "a text without special tokens": ("/tokenize", {"prompt": "Hello", "add_special_tokens": False}),
    "a chat": ("/tokenize", {"messages": HI}),
    "a chat with tools": ("/tokenize", {"messages": HI, "tools": TOOLS, "add_generation_prompt": False}),
    "a chat without thoughts": ("/tokenize", {"messages": HI, "chat_template_kwargs": {"enable_thinking": False}}),
    "tokens": ("/detokenize", {"tokens": [39, 1725, 339, 1297, 554]}),
    "no tokens": ("/detokenize", {"tokens": []}),
    "odd messages": ("/tokenize", {"messages": [{"role": 7}]}),
    "odd tokens": ("/detokenize", {"tokens": ["x"]}),
}


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES.keys())
async def test_the_answer_is_vllms_own(tools: VllmServer, path: str, body: dict[str, Any]) -> None:
    asked = {"model": "tiny", **body}
    async with gateway_of(tools) as gateway, httpx.AsyncClient(base_url=tools.url, trust_env=False) as vllm:
        ours, theirs = await gateway.client.post(path, json=asked), await vllm.post(path, json=asked, timeout=60)
    assert ours.status_code == theirs.status_code
    if ours.status_code == 200:
        assert ours.json() == theirs.json()
        assert ours.headers["x-gateway-backend"] == "tiny"
    else:
        assert ours.json()["error"]["message"]


async def test_a_chat_has_as_many_tokens_as_it_is_billed_for(tools: VllmServer) -> None:
    async with gateway_of(tools) as gateway:
        for more in ({}, {"tools": TOOLS}):
            body = {"model": "tiny", "messages": HI, **more}
            counted = (await gateway.client.post("/tokenize", json=body)).json()["count"]
            chat = await gateway.client.post("/v1/chat/completions", json={**body, "max_tokens": 2})
            assert counted == chat.json()["usage"]["prompt_tokens"]
