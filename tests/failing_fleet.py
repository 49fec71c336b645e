"""Backends that fail what is asked of them, or only what has poison in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.domain.health_state import State
from tests.scripted import SSE_HEAD, RawReply, ScriptedBackend, Turn, answer, chunked, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway

POISON = "this conversation is broken"
SAID = "Failed to parse input at pos 12"
ERROR = {"error": {"message": SAID, "type": "server_error", "code": 500}}
CHOICE: dict[str, Any] = {"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}
WHOLE = {"id": "x", "model": "m", "choices": [CHOICE]}
CHUNK = b'data: {"id":"x","model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
CLOUD = ", engine: openai, cloud: true, model: m"  # keys of a backend of `fleet`
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

Script = Callable[[Turn], Awaitable[object]]


async def good(turn: Turn) -> None:
    if b'"input"' in turn.body:
        await turn.send(json_answer({"data": [{"index": 0, "embedding": [0.5]}]}))
    elif turn.json.get("stream"):
        await turn.stream(CHUNK, b"data: [DONE]\n\n")
    else:
        await turn.send(json_answer(WHOLE))


async def fail(turn: Turn) -> None:
    await turn.send(json_answer(ERROR, "500 Internal Server Error"))


async def reset(turn: Turn) -> None:
    turn.reset()


async def error_object(turn: Turn) -> None:
    if turn.json.get("stream"):
        await turn.send(SSE_HEAD + chunked(b"data: " + json.dumps(ERROR).encode() + b"\n\n", b"data: [DONE]\n\n"))
        await turn.send(b"0\r\n\r\n")
    else:
        await turn.send(json_answer(ERROR))


async def no_json(turn: Turn) -> None:
    await turn.send(answer(b"<html>oops</html>", content_type="text/html"))


async def cut_off(turn: Turn) -> None:
    await turn.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    turn.close()


FAILURES: dict[str, Script] = {
    "500": fail,
    "an error object": error_object,
    "no JSON": no_json,
    "a reset": reset,
    "cut off": cut_off,
}


def picky(poisoned: Script = fail, others: Script = good) -> Script:
    """Fails what has the poison in it."""

    async def script(turn: Turn) -> None:
        await (poisoned if POISON.encode() in turn.body else others)(turn)

    return script


@dataclass
class Fleet:
    """Backends by name, all of them in order under the alias `chat`, each a step of its own."""

    gateway: RunningGateway
    backends: dict[str, ScriptedBackend] = field(default_factory=dict)

    async def ask(self, text: str = POISON, path: str = "/v1/chat/completions", **more: Any) -> RawReply:
        body = {"model": "chat", "max_tokens": 50, "messages": [{"role": "user", "content": text}], **more}
        return await raw_post(self.gateway.url, body, path, headers=more.pop("headers", ()))

    def poisoned(self, name: str) -> int:
        """How often the poison came to this backend."""
        return sum(POISON.encode() in turn.body for turn in self.backends[name].turns)

    def states(self) -> set[State]:
        return {self.gateway.state(name) for name in self.backends}

    def untouched(self) -> None:
        for name in self.backends:
            health = self.gateway.gateway.fleet[name].health
            assert (health.state, health.fails) == (State.READY, 0)
            assert self.gateway.metric("gateway_backend_transitions_total", backend=name, state="suspect") == 0


@asynccontextmanager
async def fleet(*scripts: Script, keys: str = "", more: str = "") -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        backends = {name: await stack.enter_async_context(scripted(s)) for name, s in zip("abc", scripts, strict=False)}
        lines = ["defaults: {queue: {max_wait: 0s}}", "backends:"]
        lines += [f"  {name}: {{url: '{backend.url}'{keys}}}" for name, backend in backends.items()]
        lines += [f"aliases: {{chat: {{use: [{', '.join(backends)}], cloud_when: [down, busy]}}}}", more]
        gateway = await stack.enter_async_context(running_gateway("\n".join(lines)))
        if "cloud" not in keys:
            await gateway.until_ready(*backends)
        yield Fleet(gateway, backends)
