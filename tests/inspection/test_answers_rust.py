"""Answers of vLLM's Rust front end, as a real one gives them: what its parser leaves is mended, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator import SimRustFrontEnd
from simulator.faults import Fault
from tests.one_backend import one_backend
from tests.raw_client import chat

CHAT = "/v1/chat/completions"
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}},
    }
]
CALL = '{"name": "get_weather", "parameters": {"city": "Oslo"}}\n</tool_call>'


async def answered(sim: SimRustFrontEnd, script: str, *, stream: bool) -> tuple[str, list[tuple[str, str]], str]:
    """(content, calls, finish_reason) that a client gets for this text of a model whose parser reads no call in it."""
    sim.faults.add(Fault("leak_tools"))
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        body = chat("a", stream=stream, tools=TOOLS, vllm_xargs={"script": script})
        reply = await gateway.client.post(CHAT, json=body)
    return of_stream(reply.text) if stream else of_whole(reply.json())


def of_whole(answer: Any) -> tuple[str, list[tuple[str, str]], str]:
    message = answer["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return message["content"] or "", calls, answer["choices"][0]["finish_reason"]


def of_stream(text: str) -> tuple[str, list[tuple[str, str]], str]:
    content, finish = "", ""
    calls: dict[int, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            content += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                known = calls.setdefault(call["index"], ["", ""])
                known[0] += call["function"].get("name") or ""
                known[1] += call["function"].get("arguments") or ""
            finish = choice.get("finish_reason") or finish
    return content, [(name, arguments) for name, arguments in calls.values()], finish


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_call_without_its_opening_tag_is_a_call(stream: bool) -> None:
    content, calls, finish = await answered(SimRustFrontEnd(), CALL, stream=stream)
    assert (content, [(name, json.loads(given)) for name, given in calls], finish) == (
        "",
        [("get_weather", {"city": "Oslo"})],
        "tool_calls",
    )
