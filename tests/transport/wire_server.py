"""A server that sends exactly the bytes a test wants, and tells what happens to its connections."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType

from tests.waiting import pace


class Peer:
    """One accepted connection, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number  # 0 for the first connection the server accepted
        self.lost = asyncio.Event()

    async def request(self) -> tuple[str, bytes]:
        """The next request: its head as text, and its body (by content-length)."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        return head, await self.reader.readexactly(int(header(head, "content-length") or 0))

    async def send(self, *pieces: bytes) -> None:
        """Each piece on its own; more than one are paced, so that the client reads them apart."""
        for number, piece in enumerate(pieces):
            if number:
                await pace(0.001)
            self.writer.write(piece)
            await self.writer.drain()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """An RST instead of a FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def until_lost(self) -> None:
        """Reads, and forgets, until the client is gone."""
        while await self.reader.read(65536):
            pass


Handler = Callable[[Peer], Awaitable[object]]


class WireServer:
    """Runs `handler` for each connection; when it returns the connection is closed."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.peers: list[Peer] = []
        self.open = 0
        self.errors: list[Exception] = []

    @property
    def origin(self) -> tuple[str, str, int]:
        assert self._server is not None
        return "http", "127.0.0.1", self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> WireServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.errors and error is None:
            raise self.errors[0]

    async def connections(self, count: int, within: float = 2.0) -> None:
        """Waits until exactly `count` connections are open. Raises TimeoutError."""
        async with asyncio.timeout(within):
            while self.open != count:
                self._changed.clear()
                await self._changed.wait()

    async def peer(self, number: int) -> Peer:
        """The connection of that number, once it is accepted."""
        async with asyncio.timeout(2):
            while len(self.peers) <= number:
                self._changed.clear()
                await self._changed.wait()
        return self.peers[number]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        peer = Peer(reader, writer, len(self.peers))
        self.peers.append(peer)
        self._count(+1)
        try:
            await self._handler(peer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            writer.close()
            peer.lost.set()
            self._count(-1)

    def _count(self, change: int) -> None:
        self.open += change
        self._changed.set()


def header(head: str, name: str) -> str | None:
    """The last value of a header of a request head, None if it has none of that name."""
    found = None
    for line in head.split("\r\n")[1:]:
        key, _, value = line.partition(":")
        if key.lower() == name:
            found = value.strip()
    return found


def answer(body: bytes = b"", *headers: str, status: str = "200 OK") -> bytes:
    """A complete answer with a content-length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; of b"" the last one, without trailers."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def always(*pieces: bytes) -> Handler:
    """Answers every request on every connection with these bytes."""

    async def handler(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(*pieces)

    return handler


def once(*pieces: bytes, reset: bool = False) -> Handler:
    """Answers the first request of a connection with these bytes, then ends the connection."""

    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(*pieces)
        if reset:
            await pace(0.01)  # an RST overtakes what the client has not read yet
            peer.reset()

    return handler
