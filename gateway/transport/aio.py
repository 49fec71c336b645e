"""The client on aiohttp: TLS, names with several addresses, everything that is not a plain LAN backend.

aiohttp implements HTTP. This module translates its failures and adds what `Client` guarantees and aiohttp does not: it
reports whether a connection was reused, never sends a request twice by itself, and closes sockets at once.
"""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from gateway.domain.upstream import (
    ConnectFailure,
    OwnFailure,
    ProtocolFailure,
    ResetFailure,
    StaleConnection,
    UpstreamFailure,
    read_counted,
)
from gateway.errors import fresh
from gateway.shortage import shortage_of

from .inflate import Inflater, inflater_for

if TYPE_CHECKING:
    from aiohttp.tracing import Trace

MAX_HEAD = 64 * 1024
READ_BUFFER = 64 * 1024
LARGE_BODY = 512 * 1024  # larger bodies are given to aiohttp as a file: it warns about writes of 1 MiB


class _Attempt:
    """One `send` and the connection that it uses."""

    __slots__ = ("content", "protocol", "reused", "transport")

    def __init__(self) -> None:
        self.reused = False
        self.protocol: ResponseHandler | None = None
        self.transport: asyncio.Transport | None = None
        self.content: aiohttp.StreamReader | None = None

    def abort(self) -> None:
        # transport.close() would flush first, and never finish if the peer does not read.
        if self.transport is not None:
            self.transport.abort()

    def answered(self, response: aiohttp.ClientResponse) -> None:
        """The head has arrived. From now on `lost` ends a read of the body when the connection is lost."""
        self.content = response.content
        if self.protocol is not None and not self.protocol.connected:
            self.lost()

    def lost(self) -> None:
        """The connection was closed. Sets the exception of an unfinished body: when aiohttp closes a connection because
        of bytes that are not HTTP it sets none, and the reader would wait for ever."""
        content, protocol = self.content, self.protocol
        if content is not None and protocol is not None and not content.is_eof() and content.exception() is None:
            error = protocol.exception()
            failure = ProtocolFailure if isinstance(error, HttpProcessingError) else ResetFailure
            content.set_exception(failure(f"the connection ended in the body: {error}"))


PIECE = 64 * 1024  # bytes of a file that are sent at a time


class _Connector(aiohttp.TCPConnector):
    """A connector that stores the connection in the running attempt. The attempt is found by the task's context, so
    concurrent requests cannot confuse their connections."""

    def __init__(self, running: ContextVar[list[_Attempt]], *, max_idle: float, force_close: bool = False) -> None:
        super().__init__(
            limit=0,
            force_close=force_close,
            keepalive_timeout=None if force_close else max_idle,
            ttl_dns_cache=30,
            socket_factory=_keepalive_socket,
        )
        self._running_attempt = running
        self._last: dict[ResponseHandler, _Attempt] = {}  # of each open connection

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            assert protocol is not None
            reused = protocol in self._last
            if not (reused and protocol.should_close):
                break
            connection.close()  # bytes arrived while it was idle: they are not the answer to this request
        (attempt,) = self._running_attempt.get()
        attempt.reused, attempt.protocol, attempt.transport = reused, protocol, protocol.transport
        if not reused and (closed := protocol.closed) is not None:
            closed.add_done_callback(partial(self._lost, protocol))
        if protocol.connected:  # else `answered` finds that it is lost
            self._last[protocol] = attempt
        return connection

    def _lost(self, protocol: ResponseHandler, closed: asyncio.Future[None]) -> None:
        closed.exception()  # the response has the reason too; asyncio would log an exception that was never read
        if (attempt := self._last.pop(protocol, None)) is not None:
            attempt.lost()


def _keepalive_socket(info: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, proto, _, _ = info
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


class AioResponse:
    """A `Response` (domain/upstream.py). `reused`: the answer came over a pooled connection."""

    __slots__ = ("_attempt", "_client", "_failure", "_inflater", "_over", "_response", "headers", "reused", "status")

    def __init__(self, client: AioClient, attempt: _Attempt, response: aiohttp.ClientResponse) -> None:
        self._client = client
        self._attempt = attempt
        self._response = response
        self._failure: UpstreamFailure | None = None
        self._over = False
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self.reused = attempt.reused
        self._inflater: Inflater | None = inflater_for(self.headers)

    async def read_some(self) -> bytes:
        if self._inflater is not None and self._inflater.more:
            await asyncio.sleep(0)  # a few compressed bytes may decode to many: let other tasks run in between
        inflater = self._inflater
        if inflater is None:  # a plain body, or aborted meanwhile
            return await self._read_wire()
        while not (data := inflater.step()):
            wire = await self._read_wire()
            if not wire:
                inflater.finish()
                return b""
            inflater.feed(wire)
        return data

    async def _read_wire(self) -> bytes:
        if self._failure is not None:
            raise fresh(self._failure)
        try:
            return await self._response.content.readany()
        except UpstreamFailure as failure:  # of `abort`
            raise fresh(failure.with_traceback(None)) from None  # aiohttp keeps it
        except Exception as error:
            self._failure = _body_failure(error)
            raise self._failure from error.with_traceback(None)  # aiohttp keeps it

    async def read_all(self, limit: int) -> bytes:
        return await read_counted(self, limit)

    def abort(self, reason: UpstreamFailure | None = None) -> None:
        if self._over:
            return
        self._over = True
        self._inflater = None
        self._failure = reason or ResetFailure("aborted by the gateway")
        self._response.content.set_exception(self._failure)  # wakes a pending read
        # At the end of a body aiohttp has already released the connection; another request may be using it.
        if not self._response.closed:
            self._attempt.abort()
        self._response.close()
        self._client.forget(self)

    def release(self) -> None:
        if self._over:
            return
        if not self._response.content.is_eof():
            self.abort()
            return
        self._over = True
        self._response.release()
        self._client.forget(self)


class AioClient:
    """A `Client` (domain/upstream.py) for `origin` (scheme, host, port); `connect_timeout`, `max_idle` in seconds."""

    def __init__(self, origin: tuple[str, str, int], connect_timeout: float, max_idle: float = 4.0) -> None:
        scheme, host, port = origin
        self._address = host.strip("[]"), port
        self._base = str(URL.build(scheme=scheme, host=host.strip("[]"), port=port))
        self.connect_timeout = connect_timeout
        self._max_idle = max_idle
        self._running: ContextVar[list[_Attempt]] = ContextVar("attempt")
        self._pooled: aiohttp.ClientSession | None = None
        self._unpooled: aiohttp.ClientSession | None = None
        self._busy: set[AioResponse | _Attempt] = set()
        self._closed = False

    @property
    def connect_timeout(self) -> float:
        return self._timeout.sock_connect or 0.0

    @connect_timeout.setter
    def connect_timeout(self, seconds: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, connect=seconds, sock_connect=seconds)

    async def send(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | memoryview,
        *,
        fresh: bool = False,
    ) -> AioResponse:
        if self._closed:
            raise ConnectFailure("the client is closed")
        session = self._session(fresh)
        attempt = _Attempt()
        running = [attempt]  # emptied at the end: the transport of a new connection keeps this context
        self._running.set(running)
        self._busy.add(attempt)
        try:
            response = await session.request(
                method,
                URL(self._base + path, encoded=True),
                headers=[*headers, *_length_of(body), ("Accept-Encoding", "identity")],
                data=_payload(body),
                allow_redirects=False,
                timeout=self._timeout,
            )
            return self._accept(attempt, response)
        except UpstreamFailure:
            raise
        except Exception as error:
            attempt.abort()
            raise _send_failure(error, attempt, self._address) from error
        except BaseException:
            attempt.abort()
            raise
        finally:
            self._busy.discard(attempt)
            running.clear()

    def _accept(self, attempt: _Attempt, response: aiohttp.ClientResponse) -> AioResponse:
        try:
            if response.status < 200:
                raise ProtocolFailure(f"status {response.status} without having asked for it")
            if sum(len(name) + len(value) + 4 for name, value in response.raw_headers) > MAX_HEAD:
                raise ProtocolFailure(f"the head of the answer is larger than {MAX_HEAD} bytes")
            attempt.answered(response)
            answer = AioResponse(self, attempt, response)
        except UpstreamFailure:
            response.close()
            raise
        self._busy.add(answer)
        return answer

    def _session(self, fresh: bool) -> aiohttp.ClientSession:
        session = self._unpooled if fresh else self._pooled
        if session is not None:
            return session
        session = aiohttp.ClientSession(
            connector=_Connector(self._running, max_idle=self._max_idle, force_close=fresh),
            trust_env=False,
            auto_decompress=False,  # `inflate.py` decompresses in bounded steps, for both clients
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            read_bufsize=READ_BUFFER,
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
        )
        # aiohttp would retry idempotent methods on a dead connection; the caller decides about retries.
        session._retry_connection = False
        if fresh:
            self._unpooled = session
        else:
            self._pooled = session
        return session

    def forget(self, response: AioResponse) -> None:
        """The response no longer holds a connection."""
        self._busy.discard(response)

    async def close(self) -> None:
        self._closed = True
        for busy in list(self._busy):
            busy.abort()
        for session in (self._pooled, self._unpooled):
            if session is not None:
                await session.close()


def _send_failure(error: Exception, attempt: _Attempt, address: tuple[str, int]) -> Exception:
    """The `UpstreamFailure` for an exception of aiohttp before the head of the answer; unknown exceptions stay."""
    text = str(error) or type(error).__name__
    if (kind := shortage_of(error, address=address)) is not None:
        return OwnFailure(kind, unsent=attempt.transport is None)
    if attempt.transport is None:
        return ConnectFailure(text) if isinstance(error, aiohttp.ClientError | OSError) else error
    if isinstance(error, aiohttp.ClientResponseError):
        return ProtocolFailure(text)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        # `message` is what aiohttp had parsed; it is a string only if not one byte had arrived.
        silent = isinstance(error.message, str)
        return StaleConnection(text) if attempt.reused and silent else ResetFailure("the connection ended in the head")
    if isinstance(error, aiohttp.ClientConnectionError | OSError):
        return StaleConnection(text) if attempt.reused else ResetFailure(text)
    return error


def _body_failure(error: Exception) -> UpstreamFailure:
    """The `UpstreamFailure` for an exception of aiohttp inside the body."""
    text = str(error) or type(error).__name__
    if (kind := shortage_of(error)) is not None:
        return OwnFailure(kind, unsent=False)
    broken = isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientConnectionError | OSError)
    return ResetFailure(text) if broken else ProtocolFailure(text)


def _length_of(body: bytes | memoryview) -> list[tuple[str, str]]:
    """For a body that is sent in pieces; of any other aiohttp tells the length."""
    return [("Content-Length", str(len(body)))] if isinstance(body, memoryview) else []


def _payload(body: bytes | memoryview) -> io.BytesIO | AsyncIterator[bytes] | bytes | None:
    if isinstance(body, memoryview):  # a file, which is not copied as a whole
        return _pieces(body)
    return io.BytesIO(body) if len(body) > LARGE_BODY else body or None


async def _pieces(body: memoryview) -> AsyncIterator[bytes]:
    for at in range(0, len(body), PIECE):
        yield bytes(body[at : at + PIECE])
