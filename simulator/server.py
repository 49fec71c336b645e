"""The server of one simulated backend: uvicorn's protocol on a socket that can be closed, reopened and cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any, Protocol

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

KEEP_ALIVE = 5.0  # seconds; what vLLM runs uvicorn with
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close sends RST

Headers = list[tuple[str, str]]


class ClientGone(Exception):
    """The client left, or a fault cut the connection: nothing more can be sent."""


class _Connection(HttpToolsProtocol):
    """uvicorn's protocol; it notifies the exchange when the client leaves."""

    exchange: Exchange | None = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["sim.connection"] = self  # type: ignore[typeddict-unknown-key]  # private to this package

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.exchange is not None:
            self.exchange.lost()

    def cut(self, reset: bool) -> None:
        """Close now, without the end of the body: FIN, or RST with `reset`."""
        if reset:
            sock = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
        else:
            self.transport.close()


class Exchange:
    """One request and its answer. Every `send_*` and `write` raises ClientGone after the client has left."""

    def __init__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self.headers: dict[str, str] = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        self.body = b""
        self.status: int | None = None
        self.finished = False  # whole answer sent, or cut on purpose
        self.on_lost: list[Callable[[], None]] = []
        self._gone = asyncio.Event()
        self._receive, self._send = receive, send
        self._connection: _Connection = scope["sim.connection"]
        self._connection.exchange = self

    @property
    def gone(self) -> bool:
        return self._gone.is_set()

    def lost(self) -> None:
        """Called by the protocol when the connection is closed."""
        if self._gone.is_set():
            return
        self._gone.set()
        for callback in self.on_lost:
            callback()

    async def read_body(self) -> bytes:
        chunks = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.lost()
                raise ClientGone
            chunks.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        self._connection.flow.resume_reading()  # paused by a large last part, it would miss that the client leaves
        self.body = b"".join(chunks)
        return self.body

    async def start(self, status: int, headers: Headers, date: bool = True) -> None:
        """The head, in uvicorn's order: date and server first."""
        if self.gone:
            raise ClientGone
        self.status = status
        first = [("date", formatdate(usegmt=True)), ("server", "uvicorn")] if date else []
        raw = [(k.encode(), v.encode()) for k, v in [*first, *headers]]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, more: bool = True) -> None:
        if self.gone:
            raise ClientGone
        if not more:
            self.finished = True
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def send(self, status: int, body: bytes, content_type: str | None, extra: Headers | None = None) -> None:
        """A whole answer with its length."""
        headers = [("content-length", str(len(body)))]
        if content_type:
            headers.append(("content-type", content_type))
        await self.start(status, [*headers, *(extra or [])])
        await self.write(body, more=False)

    async def send_json(self, status: int, value: Any, extra: Headers | None = None) -> None:
        await self.send(status, msgspec.json.encode(value), "application/json", extra)

    async def send_method_not_allowed(self, allow: tuple[str, str]) -> None:
        """405 as Starlette writes it: `allow` before the length."""
        body = b'{"detail":"Method Not Allowed"}'
        headers = [allow, ("content-length", str(len(body))), ("content-type", "application/json"), ("vary", "Origin")]
        await self.start(405, headers)
        await self.write(body, more=False)

    async def cut(self, reset: bool = False) -> None:
        """End the connection without ending the answer."""
        self.finished = True
        self._connection.cut(reset)
        try:  # uvicorn complains about an answer without an end while the connection still stands
            async with asyncio.timeout(1.0):
                await self._gone.wait()
        except TimeoutError:
            self._connection.transport.abort()
        raise ClientGone


class Handler(Protocol):
    """What answers the requests of one listener. ClientGone may pass through."""

    async def handle(self, exchange: Exchange) -> None: ...


class SimServer:
    """One port. `async with SimServer(app, port=0) as server: server.url`.

    The port stays reserved while nothing listens on it (`refuse`, a cold start), so that it can be reopened.
    """

    def __init__(self, app: Handler, host: str = "127.0.0.1", port: int = 0) -> None:
        self._app, self.host, self.port = app, host, port
        self._state = ServerState()
        self._config = uvicorn.Config(
            self._serve, http=_Connection, lifespan="off", log_config=None, access_log=False, date_header=False,
            server_header=False, timeout_keep_alive=int(KEEP_ALIVE), ws="none", interface="asgi3",
        )  # fmt: skip
        self._config.load()
        self._holder: socket.socket | None = None  # bound to reserve the port, never listening
        self._listener: asyncio.Server | None = None
        self._opening: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def listening(self) -> bool:
        return self._listener is not None or self._opening is not None

    async def __aenter__(self) -> SimServer:
        self.reserve()
        self.open()
        await self.opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def reserve(self) -> None:
        """Bind the port without listening: connections are refused. Raises OSError when another process has it."""
        if self._holder is not None:
            return
        if self.port:  # SO_REUSEPORT would share it silently
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self.host, self.port))
        self._holder = self._bound()
        self.port = self._holder.getsockname()[1]

    def _bound(self) -> socket.socket:
        # asyncio disables Nagle's algorithm only with an explicit protocol
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((self.host, self.port))
        sock.setblocking(False)
        return sock

    def open(self) -> None:
        """Listen. The kernel accepts at once, the loop serves as soon as it runs."""
        if self.listening:
            return
        sock = self._bound()
        sock.listen(2048)
        self._opening = asyncio.get_running_loop().create_task(self._attach(sock))

    async def opened(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])

    async def _attach(self, sock: socket.socket) -> None:
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: _Connection(config=self._config, server_state=self._state, app_state={}), sock=sock
            )
        finally:
            self._opening = None

    def refuse_now(self) -> None:
        """Close the port: new connections are refused, idle ones closed. Requests in flight continue."""
        if self._opening is not None:
            self._opening.add_done_callback(lambda _: self.refuse_now())
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in self._connections():
            if connection.cycle is None or connection.cycle.response_complete:
                connection.transport.close()
            else:
                connection.cycle.keep_alive = False

    async def refuse(self) -> None:
        """`refuse_now`, and wait until the port is closed."""
        await self.opened()
        self.refuse_now()
        for _ in range(3):  # the loop closes sockets in its next rounds
            await asyncio.sleep(0)

    async def kill(self) -> None:
        """As `kill -9` looks from outside: every connection is reset, the port refuses."""
        connections = self._connections()
        await self.refuse()
        for connection in {*connections, *self._connections()}:
            if connection.exchange is not None:
                connection.exchange.finished = True
            connection.cut(reset=True)
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop for good; ends everything that is still in flight."""
        await self.kill()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=2.0)
        if self._holder is not None:
            self._holder.close()
            self._holder = None

    def _connections(self) -> list[_Connection]:
        return [c for c in self._state.connections if isinstance(c, _Connection)]

    async def _serve(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        exchange = Exchange(scope, receive, send)
        with contextlib.suppress(ClientGone):
            await self._app.handle(exchange)
