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
    ended: bool = False  # the server has closed it


@dataclass
class Wiretap:
    """`url` stands in front of the server; `exchanges` are its connections so far."""

    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    tell: asyncio.Event = field(default_factory=asyncio.Event)  # unset: nobody is told what the server closes

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


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    """Until one of them is closed."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            kept += data
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def wiretap(url: str) -> AsyncIterator[Wiretap]:
    """A relay in front of `url`."""
    parts = urlsplit(url)
    tap, tasks = Wiretap(), set[asyncio.Task[None]]()
    tap.tell.set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        exchange = Exchange()
        tap.exchanges.append(exchange)
        there, back = await asyncio.open_connection(parts.hostname, parts.port)

        async def up() -> None:
            await _pump(reader, back, exchange.asked)
            back.close()

        async def down() -> None:
            await _pump(there, writer, exchange.answered)
            exchange.ended = True
            await tap.tell.wait()
            writer.close()

        await asyncio.gather(up(), down())

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    tap.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
