"""An HTTP client that is nothing but a socket: it can leave, stop reading or fall silent at any byte."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

WITHIN = 5.0  # seconds until a read is called hung
_RESET = struct.pack("ii", 1, 0)


class RawClient:
    """One connection. Every read raises TimeoutError after `WITHIN` seconds."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.seen = b""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, body: dict[str, Any], *headers: str) -> None:
        await self.send(post_bytes(path, body, *headers))

    async def get(self, path: str) -> None:
        await self.send(f"GET {path} HTTP/1.1\r\nhost: gateway\r\n\r\n".encode())

    async def until(self, mark: bytes) -> bytes:
        """All bytes since the last call, up to and with `mark`."""
        async with asyncio.timeout(WITHIN):
            data = await self.reader.readuntil(mark)
        self.seen += data
        return data

    async def answer(self) -> tuple[int, bytes]:
        """(status, body) of one answer that has a content-length."""
        head = (await self.until(b"\r\n\r\n")).decode("latin-1")
        lengths = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
        async with asyncio.timeout(WITHIN):
            body = await self.reader.readexactly(int(lengths[0].split(":")[1]))
        return int(head.split(" ")[1]), body

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(WITHIN):
            data = await self.reader.read()
        self.seen += data
        return data

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()

    def half_close(self) -> None:
        """Say that no more will be sent; the receiving half stays open."""
        self.writer.write_eof()


@asynccontextmanager
async def raw_client(url: str, *, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
    """A connection to the gateway at `url`. `receive_buffer`: bytes the kernel may take in for us, fixed."""
    parts = urlsplit(url)
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=65536)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


def post_bytes(path: str, body: dict[str, Any], *headers: str) -> bytes:
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "host: gateway", "content-type: application/json"]
    lines = [*head, f"content-length: {len(data)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + data


def chat(model: str = "a", said: str = "hello", **further: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": said}], **further}
