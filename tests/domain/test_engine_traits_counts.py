"""Which servers count a prompt, and how each is asked."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.endpoints import COMPLETIONS
from gateway.domain.request import InferenceRequest
from gateway.engines.tokenize import count_tokens
from tests.engines.scripted import ScriptedClient, ScriptedResponse
from tests.engines.test_tokenize import HELLO, TOOL, request, server

TURN: dict[str, Any] = {"tools": [TOOL], "tool_choice": "auto", "chat_template_kwargs": {"enable_thinking": False}}
WAYS: list[tuple[str, InferenceRequest, str, dict[str, Any], bytes]] = [
    ("vllm", request(COMPLETIONS, prompt="Once"), "/tokenize", {"model": "served", "prompt": "Once"}, b'{"count":7}'),
    (
        "llamacpp",
        request(**TURN, stream=True, max_tokens=9),
        "/v1/chat/completions/input_tokens",
        {"model": "served", "messages": HELLO, **TURN},
        b'{"input_tokens":7,"object":"response.input_tokens"}',
    ),
    (
        "llamacpp",
        request(COMPLETIONS, prompt="Once"),
        "/tokenize",
        {"model": "served", "content": "Once", "add_special": True},
        b'{"tokens":[46,676,987,266,268,690,1]}',
    ),
    (
        "sglang",
        request(COMPLETIONS, prompt="Once"),
        "/tokenize",
        {"model": "served", "prompt": "Once"},
        b'{"tokens":[1,2,3,4,5,6,7],"count":7,"max_model_len":9}',
    ),
    (
        "tgi",
        request(tools=[TOOL], tool_choice="auto"),
        "/chat_tokenize",
        {"model": "served", "messages": HELLO, "tools": [TOOL], "tool_choice": "auto"},
        b'{"tokenize_response":[{"id":1},{"id":2},{"id":3},{"id":4},{"id":5},{"id":6},{"id":7}],"templated_text":"x"}',
    ),
    (
        "tgi",
        request(COMPLETIONS, prompt="Once"),
        "/tokenize",
        {"model": "served", "inputs": "Once"},
        b' [{"id":1},{"id":2},{"id":3},{"id":4},{"id":5},{"id":6},{"id":7}] ',
    ),
]


@pytest.mark.parametrize(("name", "body", "path", "question", "reply"), WAYS)
async def test_each_server_is_asked_in_its_own_way(
    name: str, body: InferenceRequest, path: str, question: dict[str, Any], reply: bytes
) -> None:
    client = ScriptedClient(ScriptedResponse(200, [reply]))
    assert await count_tokens(server(name, client), body) == 7
    assert client.sent == [(path, question)]


@pytest.mark.parametrize("name", ["sglang", "lmstudio", "mlx", "transformers", "tensorrt-llm"])
async def test_a_server_that_counts_no_chats_is_not_asked(name: str) -> None:
    client = ScriptedClient()
    assert await count_tokens(server(name, client), request()) is None
    assert client.sent == []
