"""What Ollama says, line by line, and how it reaches a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import Endpoint
from gateway.domain.upstream import Response, UpstreamFailure
from gateway.engines.ollama.engine import OllamaEngine
from gateway.transport.h1 import open_client
from simulator import SimOllama
from tests.engines.scripted import ScriptedClient, ScriptedResponse, call_of, events_of, state_of

ASK = {"model": "qwen3:8b", "messages": [{"role": "user", "content": "hello"}]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
DONE: dict[str, Any] = {"done": True, "done_reason": "stop", "prompt_eval_count": 12, "eval_count": 5}


def said(**message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": "", **message}, "done": False}


def call_line(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return said(tool_calls=[{"function": {"index": 0, "name": name, "arguments": arguments}}])


def ndjson(*lines: dict[str, Any]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def backend(**changed: Any) -> Backend:
    return Backend("q", "ollama", **{"url": "http://127.0.0.1:1", "context": 8192, **changed})


async def send(
    *pieces: bytes | UpstreamFailure, endpoint: Endpoint | None = None, status: int = 200, **fields: Any
) -> tuple[Response, ScriptedResponse, ScriptedClient]:
    upstream = ScriptedResponse(status, pieces)
    client = ScriptedClient(upstream)
    asked = {**ASK, **fields} if endpoint is None else {"model": "m", **fields}
    call = call_of(asked, endpoint) if endpoint else call_of(asked)
    return await OllamaEngine().send(state_of(backend(), client), call), upstream, client


async def read(response: Response) -> bytes:
    parts = []
    while part := await response.read_some():
        parts.append(part)
    return b"".join(parts)


async def stream(*lines: dict[str, Any], **fields: Any) -> list[Any]:
    response, _, _ = await send(ndjson(*lines), stream=True, **fields)
    return events_of(await read(response))


def deltas(events: list[Any]) -> list[Any]:
    return [e["choices"][0]["delta"] for e in events if isinstance(e, dict) and e["choices"]]


# -- against a server -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def ollama(**options: Any) -> AsyncIterator[tuple[SimOllama, BackendState]]:
    sim = SimOllama(**options)
    async with sim.serve() as url:
        box = backend(url=url)
        client = open_client(box.origin, connect_timeout=3.0)
        try:
            yield sim, state_of(box, client)
        finally:
            await client.close()
