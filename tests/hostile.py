"""A backend whose probes are answered badly: endless, compressed, dripping, mistyped."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from tests.scripted import answer
from tests.waiting import pace

MIB = 1024 * 1024
Write = Callable[[asyncio.StreamWriter], Awaitable[None]]
FINE: Mapping[str, bytes] = {
    "/version": b'{"version":"0.32.0"}',
    "/v1/models": b'{"object":"list","data":[{"id":"m","max_model_len":4096}]}',
    "/metrics": b"vllm:num_requests_running 0\nvllm:generation_tokens_total 5\n",
}
SAID = json.dumps(
    {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
)


def body(content: bytes, *more: str) -> Write:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(content, "200 OK", "application/json", *more))

    return write


def endless(piece: bytes, *more: str) -> Write:
    """The same piece again and again, until the other side goes."""
    head = "\r\n".join(["HTTP/1.1 200 OK", "content-type: text/plain", "connection: close", *more, "", ""])

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode())
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()

    return write


def dripping(head: bytes, piece: bytes = b"a") -> Write:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await pace(0.05)

    return write


def bomb(size: int = 300 * MIB) -> Write:
    """`size` bytes of zeros, compressed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(bytes(MIB)) for _ in range(size // MIB)) + packer.flush()
    return body(packed, "content-encoding: gzip")


def packed(content: bytes) -> Write:
    return body(gzip.compress(content), "content-encoding: gzip")


@asynccontextmanager
async def hostile(**answers: Write) -> AsyncIterator[str]:
    """Its URL. `answers`: the last part of a path -> how it is answered; everything else is answered well."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                length = [line for line in head.split("\r\n") if line.lower().startswith("content-length:")]
                await reader.readexactly(int(length[0].split(":")[1]) if length else 0)
                name = path.rpartition("/")[2]
                if name in answers:
                    await answers[name](writer)
                else:
                    writer.write(answer(SAID.encode() if method == "POST" else FINE.get(path, b"{}")))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
