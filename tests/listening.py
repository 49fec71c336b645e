"""What the listener's tests share: bytes to a gateway, and what comes back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from gateway.http.connection import Connection
from simulator import SimVllm
from tests.raw_client import WITHIN, raw_client
from tests.support import RunningGateway, running_gateway
from tests.waiting import turns

CHAT = "/v1/chat/completions"
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@asynccontextmanager
async def listening(more: str = "", server: str = "") -> AsyncIterator[tuple[RunningGateway, SimVllm]]:
    """A gateway with the one backend `chat`, of small `max_body`. `server`, `more`: further keys of routes.yaml."""
    sim = SimVllm(name="a", served=["m"], context=32768)
    async with sim.serve(port=0) as url:
        keys = ", ".join(key for key in ("max_body: 16KiB", server) if key)
        routes = f"server: {{{keys}}}\nbackends: {{chat: {{url: '{url}'}}}}\n{more}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("chat")
            yield gateway, sim


def connections(gateway: RunningGateway) -> list[Connection]:
    """Those that are open now."""
    return [connection for connection in gateway.server.listener.connections if isinstance(connection, Connection)]


def limit(gateway: RunningGateway, **limits: Any) -> None:
    """Give the listener other limits, from now on."""
    listener = gateway.server.listener
    listener.limits = replace(listener.limits, **limits)


def later(gateway: RunningGateway, seconds: float) -> None:
    """Have the listener look at its connections as it will in so many seconds."""
    gateway.server.listener.check_deadlines(asyncio.get_running_loop().time() + seconds)


async def said(gateway: RunningGateway, *sent: bytes, apart: bool = False) -> bytes:
    """All that comes back until the gateway ends the connection. `apart`: each part arrives alone."""
    async with raw_client(gateway.url) as client:
        for data in sent:
            try:
                await client.send(data)
            except ConnectionError:
                break
            if apart:
                await turns(10)  # on the loopback it has arrived then
        return await client.rest()


def statuses(answers: bytes) -> list[int]:
    """Of each final answer."""
    found = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n", answers)]
    return [status for status in found if status != 100]


def chat_body(**more: object) -> bytes:
    fields = {"model": "chat", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}], **more}
    return msgspec.json.encode(fields)


def request(method: str, path: str, body: bytes, *fields: str, chunked: bool = False) -> bytes:
    """A well-formed request; `chunked` with a body in two chunks."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", *fields]
    if chunked:
        half = len(body) // 2
        parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part]
        body = b"".join(parts) + b"0\r\n\r\n"
        lines.append("transfer-encoding: chunked")
    else:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def bytes_until_silence(gateway: RunningGateway, sent: bytes) -> bytes:
    """What comes back of a connection that may stay open, until its first answer is there or it is closed."""
    async with raw_client(gateway.url) as client, asyncio.timeout(WITHIN):
        await client.send(sent)
        return await client.reader.read(65536)
