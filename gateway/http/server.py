"""The server: uvicorn with the gateway's connections (connection.py) and a shutdown that suits streams."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import socket
import ssl
import struct
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, cast

import uvicorn

from gateway.config.edits import marks_of
from gateway.config.snapshot import Tls
from gateway.http.connection import Connection
from gateway.http.listener import Limits, Listener

if TYPE_CHECKING:
    from gateway.http.app import App

log = logging.getLogger("gateway.listener")

HANDSHAKE = 10.0  # seconds of a TLS handshake at most
DATE_EVERY = 1.0  # seconds for which the `date` of answers holds
_ATTACH_REUSEPORT_CBPF = 51  # Linux' number; the socket module does not know it


class ReloadedCertificate:
    """The listener's certificate and its key, read again when the files change. `context` is what new connections are
    made with. Raises OSError (an ssl.SSLError is one) where the files cannot be used at the start; later ones that
    cannot be used are logged, and the last good ones stay."""

    def __init__(self, tls: Tls) -> None:
        self._files = Path(tls.cert), Path(tls.key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._marks = self._seen = marks_of(self._files)
        self.context.load_cert_chain(*self._files)

    def refresh(self) -> None:
        """Read changed files again, once two looks find the same: programs write one after the other."""
        marks = marks_of(self._files)
        settled, self._seen = marks == self._seen, marks
        if marks != self._marks and settled:
            self._marks = marks
            self._load()

    def _load(self) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)  # a pair that fits, before it is used
            self.context.load_cert_chain(*self._files)
        except OSError as error:
            log.error("the certificate %s cannot be used (%s): the last one stays", self._files[0], error)
        else:
            log.info("the certificate %s is read again", self._files[0])


class _NoIncompleteResponseErrors(logging.Filter):
    """Drops uvicorn's error for an app that returns without completing its response: that is how the gateway ends a
    broken stream, so that the client can distinguish it from a complete one."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.getMessage() != "ASGI callable returned without completing response."


class HttpServer(uvicorn.Server):
    """Stops in an order that suits streams: no new connections; running requests may end within `server.shutdown`, then
    they are interrupted. A second signal interrupts them at once."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        self._should_exit = False
        self._woken: asyncio.Future[None] | None = None  # while the main loop waits
        super().__init__(config)
        self._app = app
        tls = app.gateway.snapshot.server.tls
        self.certificate = ReloadedCertificate(tls) if tls is not None else None
        self.listener = cast("type[Connection]", config.http).listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        reloader = self._app.gateway.reloader
        if reloader is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.ask)
        await super().startup(sockets=[])
        await self._accept(sockets or [])

    async def _accept(self, sockets: list[socket.socket]) -> None:
        """Take connections: with TLS at the first of these sockets (`server.listen`), if routes.yaml has it."""
        config, loop = self.config, asyncio.get_running_loop()

        def connection() -> asyncio.Protocol:
            made = cast("type[Connection]", config.http_protocol_class)
            return made(config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop)

        for i, sock in enumerate(sockets):
            tls = self.certificate.context if self.certificate is not None and i == 0 else None
            patience = HANDSHAKE if tls is not None else None
            server = await loop.create_server(
                connection, sock=sock, ssl=tls, backlog=config.backlog, ssl_handshake_timeout=patience
            )
            self.servers.append(server)
            draw_connections(sock)

    @property
    def should_exit(self) -> bool:
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        """May be set by a signal's handler, or in another thread."""
        self._should_exit = value
        woken = self._woken
        if value and woken is not None:
            woken.get_loop().call_soon_threadsafe(_wake, woken)

    async def main_loop(self) -> None:
        """As uvicorn's, which looks ten times a second whether to stop: here a stop ends the wait."""
        loop = asyncio.get_running_loop()
        while not await self.on_tick(0):  # makes the `date`
            woken = self._woken = loop.create_future()
            timer = loop.call_later(DATE_EVERY, _wake, woken)
            if self._should_exit:  # set meanwhile
                _wake(woken)
            await woken
            timer.cancel()
            if self.certificate is not None:
                self.certificate.refresh()
        self._woken = None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.listener.stop(asyncio.get_running_loop(), self._app.gateway.snapshot.server.shutdown)
        await super().shutdown(sockets)
        if self.force_exit:
            await self._end_at_once()

    async def _end_at_once(self) -> None:
        """What uvicorn leaves out after a second signal: interrupted requests end, and the gateway writes what it
        holds (usage above all) and gives back what it shares."""
        if tasks := list(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=self.listener.limits.last_words)
        await self.lifespan.shutdown()  # returns at once where it is done

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
            self._app.gateway.active.interrupt_all()
            return
        if sig == signal.SIGTERM:
            self.should_exit = True  # not raised again after the shutdown: a requested stop is a success
        else:
            super().handle_exit(sig, frame)
        self._app.gateway.begin_stop()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def connection_class(app: App, limits: Limits | None = None) -> type[Connection]:
    """A connection class that serves `app`; uvicorn accepts a class, not a factory."""
    return type("AppConnection", (Connection,), {"app": app, "listener": Listener(app.gateway, limits)})


def make_server(app: App, limits: Limits | None = None) -> HttpServer:
    """A server for `app`; `serve(sockets=[...])` runs it on listening sockets made by `listen`. Without `limits` there
    may be as many connections as the process may have files open for."""
    config = uvicorn.Config(
        app,
        http=connection_class(app, limits),
        proxy_headers=False,
        loop="uvloop",
        ws="none",
        lifespan="on",
        interface="asgi3",
        # The gateway's own timer interrupts streams at `server.shutdown`; this ends what is still running then.
        timeout_graceful_shutdown=int(app.gateway.snapshot.server.shutdown) + 10,
        log_level="warning",
        log_config=None,  # its lines go to the gateway's log
        access_log=False,
        server_header=False,
    )
    error_log = logging.getLogger("uvicorn.error")
    if not any(isinstance(f, _NoIncompleteResponseErrors) for f in error_log.filters):
        error_log.addFilter(_NoIncompleteResponseErrors())
    return HttpServer(config, app)


def listen(host: str, port: int, *, takeover: bool = False) -> socket.socket:
    """A listening socket. `takeover`: beside a gateway that listens there already (SO_REUSEPORT), to replace it without
    a refused connection; otherwise a port in use is an error.

    Raises OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not takeover:
        probe = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with probe:
            probe.bind((host, port))
            port = port or probe.getsockname()[1]
    # asyncio disables Nagle's algorithm only on a socket with an explicit protocol.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        sock.listen(2048)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def draw_connections(sock: socket.socket) -> None:
    """Direct all new connections to this socket, not to the gateway that listened on the port before. Connections in
    the queue of a listener are reset when it closes, so the other queue must be empty when that gateway stops. Linux
    only; without another listener nothing changes."""
    if sys.platform != "linux":
        return
    # Classic BPF, `return 1`: the second socket on the port. Where there is none the kernel chooses.
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 1))
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _ATTACH_REUSEPORT_CBPF, struct.pack("HP", 1, ctypes.addressof(program)))
