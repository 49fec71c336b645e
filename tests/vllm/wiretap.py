"""A TCP relay that keeps what a backend and the gateway said to each other, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Exchange:
    """One connection's bytes, one request long when `Wiretap.only` is used."""

    asked: bytearray = field(default_factory=bytearray)
    answered: bytearray = field(default_factory=bytearray)


@dataclass
class Wiretap:
    """`url` stands in front of the server; `exchanges` are its connections so far."""

    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)

    def posts(self) -> list[Exchange]:
        """The connections that carried inference requests; the others carried probes."""
        return [exchange for exchange in self.exchanges if exchange.asked.startswith(b"POST ")]

    def only(self) -> tuple[bytes, bytes]:
        """(request body, answer's body without its transfer coding) of the one POST that came through."""
        posts = self.posts()
        assert len(posts) == 1, f"{len(posts)} connections carried a POST"
        assert posts[0].asked.count(b"POST /") == 1
        return body_of(bytes(posts[0].asked)), body_of(bytes(posts[0].answered))


def body_of(message: bytes) -> bytes:
    head, _, body = message.partition(b"\r\n\r\n")
    return dechunked(body) if b"transfer-encoding: chunked" in head.lower() else body


def dechunked(body: bytes) -> bytes:
    pieces: list[bytes] = []
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return b"".join(pieces)
        pieces.append(body[:length])
        body = body[length + 2 :]


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray, end_after: float = 0.0
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            kept += data
            writer.write(data)
            await writer.drain()
    await asyncio.sleep(end_after)
    writer.close()


@asynccontextmanager
async def wiretap(url: str, *, end_after: float = 0.0) -> AsyncIterator[Wiretap]:
    """A relay in front of `url`. `end_after`: seconds by which the server's closing of a connection arrives late."""
    parts = urlsplit(url)
    tap, tasks = Wiretap(), set[asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        exchange = Exchange()
        tap.exchanges.append(exchange)
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(_pump(reader, back, exchange.asked), _pump(there, writer, exchange.answered, end_after))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    tap.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
