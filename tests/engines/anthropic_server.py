"""A scripted server that speaks Anthropic's Messages API, for one answer after the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Script:
    """What the server does next. `pieces` are written one by one; None = wait until the client has left."""

    status: int = 200
    pieces: Sequence[bytes | None] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class AnthropicServer:
    url: str = ""
    script: Script = field(default_factory=Script)
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)  # path, headers, body
    waiting: asyncio.Event = field(default_factory=asyncio.Event)  # everything up to a None is written
    left: asyncio.Event = field(default_factory=asyncio.Event)  # the client has gone

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append((head[0].split()[1], headers, body))
        script = self.script
        kind = "text/event-stream" if script.status == 200 and body.get("stream") else "application/json"
        further = "".join(f"{name}: {value}\r\n" for name, value in script.headers.items())
        writer.write(
            f"HTTP/1.1 {script.status} X\r\ncontent-type: {kind}\r\n{further}connection: close\r\n\r\n".encode()
        )
        for piece in script.pieces:
            if piece is not None:
                writer.write(piece)
                await writer.drain()
                continue
            self.waiting.set()
            await reader.read()
            self.left.set()


@asynccontextmanager
async def anthropic_server() -> AsyncIterator[AnthropicServer]:
    fake = AnthropicServer()
    server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield fake


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def error(kind: str, message: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


USAGE = {"input_tokens": 10, "output_tokens": 1}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_reason": None}
START = event("message_start", message={**MESSAGE, "content": [], "usage": USAGE})


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    parts = [event("content_block_start", index=index, content_block=start)]
    parts += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    return b"".join([*parts, event("content_block_stop", index=index)])


def text_block(index: int, *texts: str) -> bytes:
    return block(index, {"type": "text", "text": ""}, *[{"type": "text_delta", "text": text} for text in texts])


def tool_block(index: int, name: str, *pieces: str) -> bytes:
    start = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
    return block(index, start, *[{"type": "input_json_delta", "partial_json": piece} for piece in pieces])


def end(reason: str) -> bytes:
    return event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 9}) + event("message_stop")


def whole(content: list[dict[str, Any]], reason: str) -> bytes:
    return json.dumps({**MESSAGE, "content": content, "stop_reason": reason, "usage": USAGE}).encode()
