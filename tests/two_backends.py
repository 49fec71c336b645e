"""A gateway in front of a backend `a` that answers as a test wants, and `b`, which answers well. No number of failures
takes `a` down: it is asked first by every test, however slow the machine is."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.mutations import dumped
from tests.scripted import RawReply, ScriptedBackend, Turn, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway

ROUTES = """
defaults: {{timeouts: {{first_byte: 3s, idle: 3s}}, queue: {{max_wait: 0s}}, health: {{fail_after: 10000}}}}
backends:
  a: {{url: "{a}"}}
  b: {{url: "{b}"}}
  o: {{url: "{o}", engine: ollama, model: m, context: 8192}}
aliases:
  pair: [a, b]
  named: {{use: [a, b], reasoning_field: both}}
  ollamas: [o, b]
"""
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
DONE = b"data: [DONE]\n\n"
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
MESSAGES_TOOLS = [{"name": "now", "input_schema": {"type": "object", "properties": {}}}]
GOOD_ID = "from-b"


def chunk(delta: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "up-1", "object": "chat.completion.chunk", "created": 2, "model": "m", "choices": [choice], **more}


def whole(message: Any, finish: Any = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "up-1", "object": "chat.completion", "created": 2, "model": "m", "choices": [choice], **more}


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else dumped(value)) + b"\n\n"


async def good(turn: Turn) -> None:
    """Whatever was asked."""
    asked = turn.json
    if "input" in asked:
        await turn.send(json_answer({"object": "list", "model": "m", "data": [{"index": 0, "embedding": [1.0]}]}))
    elif "prompt" in asked:
        text = {"index": 0, "text": GOOD_ID, "finish_reason": "stop"}
        body = {"id": "c", "model": "m", "choices": [text]}
        await (turn.stream(event(body), DONE) if asked.get("stream") else turn.send(json_answer(body)))
    elif asked.get("stream"):
        await turn.stream(event(chunk({"content": GOOD_ID})), event(chunk({}, "stop")), DONE)
    else:
        await turn.send(json_answer(whole({"role": "assistant", "content": GOOD_ID})))


@dataclass
class House:
    gateway: RunningGateway
    a: ScriptedBackend
    b: ScriptedBackend
    o: ScriptedBackend

    async def ask(self, path: str, **body: Any) -> RawReply:
        return await raw_post(self.gateway.url, {"model": "pair", **body}, path)

    async def chat(self, path: str, *, stream: bool, tools: bool, **more: Any) -> RawReply:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50, "stream": stream}
        if tools:
            body["tools"] = MESSAGES_TOOLS if path == MESSAGES else TOOLS
        return await self.ask(path, **body, **more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built() -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        a, b, o = [await stack.enter_async_context(scripted(good, apart=True)) for _ in "abo"]
        routes = ROUTES.format(a=a.url, b=b.url, o=o.url)
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("a", "b")
        yield House(gateway, a, b, o)


@pytest.fixture
def house(built: House, caplog: pytest.LogCaptureFixture) -> House:
    """All well again; `b` answers. Nothing may fail inside the gateway."""
    for state in built.gateway.gateway.fleet.states.values():
        state.evidence.succeeded()
    for backend in (built.a, built.b, built.o):
        backend.play(good)
    caplog.set_level(logging.ERROR)
    return built


def failed_inside(house: House) -> float:
    return sum(house.gateway.gateway.failed_parts().values())


def well_answered(reply: RawReply, path: str, *, stream: bool) -> None:
    assert (reply.status, reply.ended) == (200, True), reply.body
    assert reply.headers["x-gateway-backend"] == "b"
    assert GOOD_ID.encode() in reply.body
    assert b"internal_error" not in reply.body
