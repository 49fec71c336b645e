"""The gateway's messages are what vLLM's own `/v1/messages` says to the same request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support import RunningGateway, running_gateway

from .asks import CALL, script
from .servers import VllmServer

MESSAGES = "/v1/messages"
TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
HI: Any = [{"role": "user", "content": "hi"}]
LOOP: Any = [
    {"role": "user", "content": [{"type": "text", "text": "What is the weather?"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I should look.", "signature": ""},
            {"type": "text", "text": "One moment."},
            {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Oslo"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}]},
]
CALLS = "<think>two</think>" + CALL % "Oslo" + "\n" + CALL % "Rome"
BODIES: dict[str, dict[str, Any]] = {
    "thoughts and text": {"messages": HI, **script("<think>\nhm.\n</think>\n\nHello there.")},
    "a system prompt": {"messages": HI, "system": "Be brief.", **script("<think>x</think>Hello")},
    "a call": {"messages": HI, "tools": TOOLS, **script("<think>x</think>Sure. " + CALL % "Oslo")},
    "two calls": {"messages": HI, "tools": TOOLS, **script(CALLS)},
    "no call where none may be": {
        "messages": HI,
        "tools": TOOLS,
        "tool_choice": {"type": "none"},
        **script("<think>x</think>Hello"),
    },
    "a call's result": {"messages": LOOP, "tools": TOOLS, **script("<think>x</think>It rains.")},
    "a limit": {"messages": HI, "max_tokens": 4, **script("<think></think>one two three four five six")},
    "a stop sequence": {"messages": HI, "stop_sequences": ["three"], **script("<think></think>one two three")},
    "no thinking": {"messages": HI, "thinking": {"type": "disabled"}, **script("Hello there")},
    "an effort": {"messages": HI, "output_config": {"effort": "high"}, **script("<think>x</think>Hello")},
}
every_body = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())


@asynccontextmanager
async def gateway_of(server: VllmServer) -> AsyncIterator[RunningGateway]:
    routes = f"backends: {{tiny: {{url: '{server.url}', tool_parser: hermes, reasoning_parser: qwen3}}}}"
    async with running_gateway(routes) as gateway:
        await gateway.until_ready("tiny")
        yield gateway


async def both(server: VllmServer, body: dict[str, Any], path: str = MESSAGES) -> tuple[httpx.Response, httpx.Response]:
    """(ours, vLLM's own)."""
    asked = {"model": "tiny", "max_tokens": 60, **body}
    async with gateway_of(server) as gateway, httpx.AsyncClient(base_url=server.url, trust_env=False) as vllm:
        return await gateway.client.post(path, json=asked), await vllm.post(path, json=asked, timeout=60)


def message_of(stream: str) -> dict[str, Any]:
    """A stream, put together."""
    message: dict[str, Any] = {}
    for event in stream.split("\n\n")[:-1]:
        data = json.loads(event.partition("\ndata: ")[2])
        match data["type"]:
            case "message_start":
                message = data["message"]
            case "content_block_start":
                message["content"].append({**data["content_block"], "json": ""})
            case "content_block_delta":
                for name, piece in data["delta"].items():
                    if name in ("text", "thinking", "signature"):
                        message["content"][data["index"]][name] = (
                            message["content"][data["index"]].get(name, "") + piece
                        )
                    elif name == "partial_json":
                        message["content"][data["index"]]["json"] += piece
            case "message_delta":
                message |= data["delta"] | {"usage": data["usage"]}
    for block in message["content"]:
        if text := block.pop("json"):
            block["input"] = json.loads(text)
    return message


def told(message: dict[str, Any]) -> dict[str, Any]:
    """What a message says: without ids and signatures, which nobody can foretell, and without blocks of white space
    alone, which ours leaves out."""
    blocks = [{k: v for k, v in block.items() if k not in ("id", "signature")} for block in message["content"]]
    said = [block for block in blocks if block.get("text", "x").strip()]
    named = {name: message.get(name) for name in ("type", "role", "model", "stop_reason", "stop_sequence")}
    return {**named, "content": said, "usage": message["usage"]}


@every_body
async def test_an_answer_in_one_piece_is_vllms(tools: VllmServer, body: dict[str, Any]) -> None:
    ours, real = await both(tools, body)
    assert (ours.status_code, real.status_code) == (200, 200), (ours.text, real.text)
    assert told(ours.json()) == told(real.json())


@every_body
async def test_a_stream_is_vllms(tools: VllmServer, body: dict[str, Any]) -> None:
    ours, real = await both(tools, {**body, "stream": True})
    assert (ours.status_code, real.status_code) == (200, 200), (ours.text, real.text)
    assert told(message_of(ours.text)) == told(message_of(real.text))


@pytest.mark.parametrize("name", ["thoughts and text", "a system prompt", "a call", "a call's result"])
async def test_tokens_are_counted_as_the_answer_counts_them(tools: VllmServer, name: str) -> None:
    counted, _ = await both(tools, BODIES[name], MESSAGES + "/count_tokens")
    answered, _ = await both(tools, BODIES[name])
    assert counted.headers["x-gateway-backend"] == "tiny"
    assert counted.json()["input_tokens"] == answered.json()["usage"]["input_tokens"]
