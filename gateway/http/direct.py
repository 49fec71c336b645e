"""One inference POST on a connection (connection.py) without ASGI: the connection hands over the body, and the answer
is written straight to the transport, head and first bytes in one system call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.admission.access import Caller
from gateway.admission.memory import Share
from gateway.domain.endpoints import Endpoint
from gateway.domain.request import OwnForm
from gateway.errors import GatewayError, fresh
from gateway.http.client_connection import ClientConnection
from gateway.proxy.exchange import PIECE, ClientGone, Headers, decode, nothing, running_task, too_large
from gateway.proxy.handler import RequestHandler
from gateway.runtime.gateway import Gateway

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
FLUSH = 5.0  # seconds in which a cut connection may send what was written to it
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
_CLOSE = b"connection: close\r\n"


def last_answer(error: GatewayError, default_headers: Headers) -> bytes:
    """The whole response for `error`, after which the connection is closed."""
    body = error.envelope()
    parts = [STATUS_LINE[error.status]]
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *error.headers()]
    for name, value in (*default_headers, *fields):
        parts += (name, b": ", value, b"\r\n")
    return b"".join((*parts, b"connection: close\r\n\r\n", body))


class DirectExchange:
    """An `Exchange` (proxy/exchange.py) straight on the connection."""

    __slots__ = (
        "_body",
        "_chunked",
        "_connection",
        "_endpoint",
        "_gateway",
        "_head",
        "_http_1_0",
        "_refused",
        "caller",
        "complete",
        "disconnected",
        "flow",
        "headers",
        "keep_alive",
        "own_task",
        "response_complete",
        "share",
        "started",
    )

    own: OwnForm | None = None
    session: bytes | None = None

    def __init__(
        self,
        connection: ClientConnection,
        gateway: Gateway,
        endpoint: Endpoint,
        caller: Caller,
    ) -> None:
        self._connection = connection
        self.flow = connection.flow
        self._gateway = gateway
        self._endpoint = endpoint
        self._body: bytes | bytearray = b""
        self._refused: GatewayError | None = None
        self._head = b""
        self._chunked = False
        self.caller = caller
        # A trace writes into the headers, which all requests of a connection may have in common.
        self.headers = caller.headers if gateway.services.tracer is None else dict(caller.headers)
        self.share = Share(gateway.memory, caller)
        self._http_1_0 = connection.http_1_0  # without chunks: the end of the connection ends the answer
        self.keep_alive = connection.keep_alive
        self.own_task: asyncio.Task[None] | None = None
        self.complete = False  # the body was read, or refused
        self.started = False
        self.response_complete = False
        self.disconnected = False

    def task(self) -> asyncio.Task[None]:
        return self.own_task or running_task()  # asking asyncio costs more

    @property
    def peer(self) -> str:
        return self.caller.peer

    # -- the request ----------------------------------------------------------------------------------------------

    def authenticate(self) -> bool:
        """Called when the head is read, so that the body of an unknown client takes no memory. False = refused."""
        try:
            self.caller.identify(self._gateway.snapshot)
        except GatewayError as error:
            self.refuse(error)
            return False
        return True

    def add_body(self, data: bytes) -> None:
        if self._refused is not None:
            return
        try:
            self.share.add(len(data))
        except GatewayError as full:
            self.refuse(full)
            return
        body = self._body
        if not body:
            self._body = data  # nearly always the whole body
        elif isinstance(body, bytearray):
            body += data
        else:
            self._body = bytearray(body) + data  # a list of tiny parts would take a multiple of the memory
        if self.share.size > self._gateway.snapshot.server.max_body:
            self.refuse(too_large(self._gateway.snapshot.server.max_body))

    def take_whole(self, body: bytes) -> None:
        """The request has come whole: run it."""
        self.add_body(body)
        if self._refused is None:
            self.complete = True
            self._connection.start(self)

    def refuse(self, error: GatewayError) -> None:
        """Answer now. The rest of the body is discarded, and the connection serves no further request."""
        self._refused = fresh(error)
        self._body = b""
        self.share.close()
        self.keep_alive = False
        self.complete = True
        self._connection.discard_input()
        self._connection.start(self)

    def abandoned(self) -> None:
        """The client left before its body was complete: there is no request, but it is counted."""
        self.share.close()
        self._gateway.metrics.requests.inc("", "", self._endpoint.name, "client_gone")

    async def run(self) -> None:
        """Run in a task of its own, when the body is complete or refused."""
        try:
            exchange = self._gateway.apps.translated(self._endpoint, self)
            handler = self._gateway.apps.handlers.get(self._endpoint.name, RequestHandler)
            await handler(self._gateway.services, self._endpoint, exchange).run()
        finally:
            self._connection.ended(self)
            if not self.response_complete and not self.disconnected:
                self._cut()

    def _cut(self) -> None:
        """End the connection without completing the answer. What was written is still sent, for FLUSH seconds."""
        connection, transport = self._connection, self._connection.transport
        self.response_complete = True
        if self._head:
            transport.write(self._head)
        connection.close_after_answer()
        if not transport.is_closing() or transport.get_write_buffer_size():
            connection.loop.call_later(FLUSH, transport.abort)

    async def read_body(self, limit: int) -> bytes:
        """As `Exchange.read_body`."""
        if self._refused is not None:
            raise fresh(self._refused)
        if self.disconnected:
            raise ClientGone
        body, self._body = bytes(self._body), b""
        encoding = self.headers.get(b"content-encoding")
        return body if encoding is None else await decode(body, encoding.lower(), limit, self.share)

    def on_leave(self, callback: Callable[[], object]) -> None:
        self._connection.on_leave(callback)

    def stop_watching(self) -> None:
        if not self.response_complete:  # else the callback is the next request's
            self._connection.on_leave(None)

    # -- the answer -----------------------------------------------------------------------------------------------

    async def start(self, status: int, headers: Headers) -> None:
        """Prepare the head; it is sent with the first bytes of the body."""
        lines: list[bytes] = []
        chunked = True
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
            if name == b"content-length":
                chunked = False
        self.begin(status, b"".join(lines), chunked=chunked)

    def begin(self, status: int, lines: bytes, *, chunked: bool) -> None:
        """As `start`. `lines`: the header fields, each with its line end."""
        self.started = True
        connection = self._connection
        if not connection.request_whole:
            self.keep_alive = False
        self._chunked = chunked = chunked and not self._http_1_0
        end = CHUNKED if chunked else b"\r\n"
        close = b"" if self.keep_alive else _CLOSE
        self._head = b"".join((STATUS_LINE[status], connection.default_lines(), lines, close, end))

    async def write(self, data: bytes) -> None:
        if self.flow.write_paused:
            await self.flow.drain()
        self.put(data)

    def put(self, data: bytes) -> None:
        if self.disconnected or self.response_complete or not data:
            return
        if self._chunked:
            data = b"%s%x\r\n%s\r\n" % (self._head, len(data), data)
        elif self._head:
            data = self._head + data
        self._head = b""
        self._connection.transport.write(data)

    async def finish(self, data: bytes = b"", progress: Callable[[], object] = nothing) -> None:
        if len(data) > PIECE:
            data = await self._write_pieces(data, progress)
        if self.flow.write_paused:
            await self.flow.drain()
        self.write_last(data)
        self.completed()

    def write_last(self, data: bytes) -> None:
        """The last part of `finish`, where there is nothing to wait for."""
        if self.disconnected:
            return
        if self._chunked:
            data = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        self._connection.transport.write(self._head + data)
        self._head = b""
        self.response_complete = True

    def completed(self) -> None:
        """The last part was written: the connection reads its next request."""
        if self.disconnected:
            return
        if not self.keep_alive:
            self._connection.close_after_answer()
        self._connection.on_response_complete()

    async def _write_pieces(self, data: bytes, progress: Callable[[], object]) -> bytes:
        """Write all but the last piece, each when the client has read enough: unread bytes would stay in memory.
        Returns the last piece."""
        view, at = memoryview(data), 0
        while len(view) - at > PIECE and not self.disconnected:
            await self.write(bytes(view[at : at + PIECE]))
            progress()
            at += PIECE
        return bytes(view[at:])
