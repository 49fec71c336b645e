"""Near the limit of its window vLLM itself counts the prompt, and it counts what it then reports."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
import pytest

from gateway.domain.endpoints import CHAT as CHAT_ENDPOINT
from gateway.domain.request import parse
from gateway.engines.tokenize import tokenize_body
from simulator import SimVllm
from tests.support import running_gateway

from .asks import CHAT, WEATHER, chat, script
from .servers import VllmServer
from .wiretap import wiretap

WORDS = "def value(self): return the name of it\n" * 150  # 5,850 bytes, some 1,500 tokens
DENSE = "q1z.x7!Kw9#" * 530  # as many bytes, a token each
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "What is the weather in Zürich? 🌧️"}]},
    {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees"},
]
BODIES: dict[str, dict[str, Any]] = {
    "words": {},
    "tools": {"tools": [WEATHER]},
    "a conversation with tools": {"tools": [WEATHER], "messages": HISTORY},
    "thinking off": {"chat_template_kwargs": {"enable_thinking": False}},
    "a prefix to go on from": {
        "messages": [*HISTORY[:1], {"role": "assistant", "content": "It is"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
}


@pytest.mark.parametrize("more", BODIES.values(), ids=BODIES.keys())
async def test_what_is_counted_is_what_the_usage_says(
    front_ends: VllmServer, http: httpx.AsyncClient, more: dict[str, Any]
) -> None:
    root = front_ends.front_end("hermes", "qwen3")
    async with running_gateway(f"backends: {{a: {{url: '{root}'}}}}\naliases: {{front: [a]}}") as gateway:
        await gateway.until_ready("a")
        body = {**chat(max_tokens=4, **script("<think></think>Hello")), **more}
        usage = (await gateway.client.post(CHAT, json=body)).json()["usage"]
        asked = tokenize_body(gateway.gateway.fleet["a"], parse(CHAT_ENDPOINT, msgspec.json.encode(body)))
    counted = await http.post(root + "/tokenize", content=asked, headers={"content-type": "application/json"})
    assert counted.json()["count"] == usage["prompt_tokens"]


@pytest.mark.parametrize(("said", "backend"), [(WORDS, "small"), (DENSE, "large")], ids=["it fits", "it does not"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_prompt_near_the_limit_is_counted_before_it_is_sent(
    front_ends: VllmServer, said: str, backend: str, stream: bool
) -> None:
    prefix = front_ends.front_end("hermes").removeprefix(front_ends.url)
    large = SimVllm("large", context=32768)
    async with wiretap(front_ends.url) as tap, large.serve() as url:
        routes = f"backends: {{small: {{url: '{tap.url}{prefix}'}}, large: {{url: '{url}'}}}}"
        async with running_gateway(routes + "\naliases: {front: [small, large]}") as gateway:
            await gateway.until_ready("small", "large")
            body = chat(said, max_tokens=16, stream=stream, **script("Hello"))
            answer = await gateway.client.post(CHAT, json=body)
        asked = b"".join(bytes(exchange.asked) for exchange in tap.exchanges)
    assert answer.status_code == 200
    assert answer.headers["x-gateway-backend"] == backend
    assert answer.headers["x-gateway-attempts"] == "1"
    paths = [path.decode().removeprefix(prefix) for path in re.findall(rb"POST (\S+) HTTP/1.1", asked)]
    assert paths == (["/tokenize", CHAT] if backend == "small" else ["/tokenize"])
    assert answer.headers.get("x-gateway-routed") == (None if backend == "small" else "too_long")
