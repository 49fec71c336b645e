"""A client that reads slower than its backend writes: the backend is slowed, the gateway does not hoard."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.domain.health_state import State
from tests.raw_client import RawClient, chat, raw_client
from tests.support import RunningGateway, running_gateway
from tests.waiting import pace, standing

MIB = 1024 * 1024
SMALL = 32 * 1024  # bytes of kernel buffer that each side asks for
EVENT = 'data: {{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{}]}}\n\n'
TEXT = "x" * 4000


def content(number: int) -> bytes:
    return EVENT.format(f'{{"index":0,"delta":{{"content":"<{number}>{TEXT}"}},"finish_reason":null}}').encode()


FINISH = EVENT.format('{"index":0,"delta":{},"finish_reason":"stop"}').encode() + b"data: [DONE]\n\n"


class Flood:
    """A backend that streams `events` events as fast as they are taken; `taken` counts the bytes that left."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.taken = 0
        self.lost = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.set_write_buffer_limits(SMALL)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for number in range(self.events):
                await self.write(writer, content(number))
            await self.write(writer, FINISH)
            await self.write(writer, b"")
        except ConnectionError:
            pass
        finally:
            self.lost.set()
            writer.close()

    async def write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()
        self.taken += len(data)

    async def stood_still(self) -> int:
        """The bytes taken once no more are."""
        return await standing(lambda: self.taken)


@asynccontextmanager
async def flooding(events: int, timeouts: str = "") -> AsyncIterator[tuple[Flood, RunningGateway]]:
    """A gateway in front of a flood, every kernel buffer on the way fixed and small where we can fix it."""
    flood = Flood(events)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    listener.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(flood.serve, sock=listener)
    flood.port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{flood.port}"
    routes = f"backends: {{a: {{url: '{url}', model: m, health: {{every: none}}, timeouts: {{{timeouts}}}}}}}"
    async with server, running_gateway(routes) as gateway:
        for accepting in gateway.server.servers:
            for sock in accepting.sockets:  # what is accepted inherits it
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        yield flood, gateway


async def read_whole_stream(client: RawClient) -> bytes:
    """The stream without its chunk framing, read to the end."""
    data = b""
    while True:
        size = int((await client.until(b"\r\n")).strip() or b"0", 16)
        async with asyncio.timeout(5):
            piece = await client.reader.readexactly(size + 2)
        if not size:
            return data
        data += piece[:-2]


async def test_a_client_that_does_not_read_slows_its_backend_and_loses_nothing() -> None:
    async with flooding(6000) as (flood, gateway), raw_client(gateway.url, receive_buffer=SMALL) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket transport can
        await client.post("/v1/chat/completions", chat(stream=True))
        taken = await flood.stood_still()
        here, there = urlsplit(gateway.url).port, flood.port
        assert here is not None
        assert taken - held_by_kernel(here, there) < MIB
        assert gateway.gateway.fleet["a"].inflight == 1
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # typed as one that only writes
        await client.until(b"\r\n\r\n")
        whole = await read_whole_stream(client)
        assert whole.endswith(b"data: [DONE]\n\n")
        numbers = [int(part[: part.index(b">")]) for part in whole.split(b'"content":"<')[1:]]
        assert numbers == list(range(6000))


def held_by_kernel(*ports: int) -> int:
    """Bytes that wait in the kernel on the connections of these ports, to be sent or to be read. How much it lets wait
    is its own decision."""
    held = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if {int(local.split(":")[1], 16), int(remote.split(":")[1], 16)} & {*ports}:
            to_send, to_read = queues.split(":")
            held += int(to_send, 16) + int(to_read, 16)
    return held


async def test_a_reader_slower_than_its_backend_but_steady_is_not_cut() -> None:
    async with flooding(900, "idle: 1s") as (_, gateway), raw_client(gateway.url, receive_buffer=SMALL) as client:
        client.writer.transport.set_write_buffer_limits(0)
        await client.post("/v1/chat/completions", chat(stream=True))
        data = b""
        began = asyncio.get_running_loop().time()
        while not data.endswith(b"0\r\n\r\n"):
            async with asyncio.timeout(5):
                piece = await client.reader.read(32 * 1024)
            assert piece, "cut"
            data = data[-16:] + piece
            await pace(0.03)  # a reader that takes its time
        assert asyncio.get_running_loop().time() - began > 2.0, "too quick to show anything"
        await gateway.until(gateway.idle)
        assert gateway.metric("gateway_requests_total", alias="a", backend="a", endpoint="chat", code="200") == 1


async def test_a_reader_that_never_reads_is_cut_after_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.direct.FLUSH", 0.2)
    async with flooding(10**6, "idle: 300ms") as (flood, gateway):
        async with raw_client(gateway.url, receive_buffer=SMALL) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as one that only writes
            await client.post("/v1/chat/completions", chat(stream=True))
            async with asyncio.timeout(10):
                await flood.lost.wait()
            await gateway.until(gateway.idle)
            # Its socket is not kept for a reader that will never come.
            await gateway.until(lambda: not gateway.server.server_state.connections)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # typed as one that only writes
            with contextlib.suppress(ConnectionError):  # a reset is as good an end
                await client.rest()
            assert not client.seen.endswith(b"0\r\n\r\n")
        health = gateway.gateway.fleet["a"].health
        assert (health.fails, health.state) == (0, State.UNKNOWN)
        stalled = gateway.metric(
            "gateway_requests_total", alias="a", backend="a", endpoint="chat", code="client_stalled"
        )
        assert stalled == 1


async def test_a_reader_that_never_reads_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the gateway stops, it is told so; but it is not waited for until it reads that."""
    monkeypatch.setattr("gateway.proxy.reply.LAST_WORDS", 0.2)
    async with flooding(10**6) as (flood, gateway), raw_client(gateway.url, receive_buffer=SMALL) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as one that only writes
        await client.post("/v1/chat/completions", chat(stream=True))
        await flood.stood_still()
        gateway.gateway.active.interrupt_all()
        await gateway.until(gateway.idle)
        assert flood.lost.is_set()
