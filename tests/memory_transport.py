"""A connection of our listener without a socket: bytes in, bytes out, all in the test's own loop."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from gateway.config.load import load_text
from gateway.http.app import App
from gateway.http.connection import Connection
from gateway.http.listener import Limits
from gateway.http.server import connection_class


class MemoryTransport(asyncio.Transport):
    """What was written is in `written`; `unread` = that nobody takes it. `peer` is the client's address."""

    was_reset = False  # by the client, and the loop has not seen it yet

    def __init__(self, protocol: Connection, peer: str = "10.0.0.1", *, unread: bool = False) -> None:
        super().__init__({"peername": (peer, 1), "sockname": ("10.0.0.2", 4000)})
        self.protocol = protocol
        self.written = bytearray()
        self.reading = True
        self.closed = False
        self.ended = False  # our sending half
        self._unread = unread
        protocol.connection_made(self)

    def receive(self, data: bytes) -> None:
        """As an event loop hands it over: not while reading is paused, nor after the end."""
        assert self.reading
        if not self.closed:
            self.protocol.data_received(data)

    def write(self, data: Any) -> None:
        assert not self.ended
        if not self.closed:
            self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written) if self._unread else 0

    def write_eof(self) -> None:
        if self.was_reset:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        self.ended = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Wireless:
    """Connections to `app`, without a listening socket."""

    def __init__(self, app: App, data: str, limits: Limits | None) -> None:
        self.app = app
        self.state = ServerState()
        self._config = uvicorn.Config(
            app, http=connection_class(app, limits), ws="none", lifespan="off", log_config=None
        )
        self._config.load()
        self._class: type[Connection] = self._config.http_protocol_class  # type: ignore[assignment]  # it is what `http` says
        self.listener = self._class.listener

    def connect(self, peer: str = "10.0.0.1", *, unread: bool = False) -> MemoryTransport:
        return MemoryTransport(self._class(self._config, self.state, {}), peer, unread=unread)


@asynccontextmanager
async def wireless(data: str, limits: Limits | None = None, server: str = "") -> AsyncIterator[Wireless]:
    """An app whose one backend does not exist, in front of it connections without sockets. `data`: a directory."""
    routes = (
        f"server: {{max_body: 4KiB, data: '{data}', {server}}}\n"
        "defaults: {health: {every: none, canary: none}, queue: {max_wait: 0s}}\n"
        "backends: {a: {url: 'http://127.0.0.1:9'}}\n"
    )
    snapshot = load_text(routes, environ={}).snapshot
    app = App(replace(snapshot, source="routes.yaml"))
    await app.gateway.open()
    try:
        yield Wireless(app, data, limits)
    finally:
        await app.gateway.close()
