"""The client for plain http, built on httptools. It costs a fraction of a general client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gateway.domain.upstream import ConnectFailure, OwnFailure, ResetFailure, Response, StaleConnection, UpstreamClient
from gateway.shortage import shortage_of

from .h1_connection import H1Connection
from .h1_response import AnswerHeads, H1Response


class RequestHead(NamedTuple):
    """The head of POST requests that differ only in the value of one header and in their length: the bytes `before`
    that value, and those `after` it up to the number of the length."""

    before: bytes
    after: bytes


class H1Client:
    """A `Client` (domain/upstream.py). `origin` is ("http", host, port); `connect_timeout`, `max_idle` are in seconds.

    Idle connections are used last in, first out, so that surplus ones exceed `max_idle` and are closed. The addresses
    of a host name are tried in the resolver's order, all within one `connect_timeout`.
    """

    def __init__(self, origin: tuple[str, str, int], connect_timeout: float, max_idle: float = 4.0) -> None:
        scheme, host, port = origin
        if scheme != "http":
            raise ValueError(f"H1Client speaks plain http only, not {scheme!r}")
        self._host = host.strip("[]")
        self._port = port
        self.connect_timeout = connect_timeout
        self._max_idle = max_idle
        name = f"[{self._host}]" if ":" in self._host else self._host
        authority = name if port == 80 else f"{name}:{port}"
        self._head = f" HTTP/1.1\r\nHost: {authority}\r\nAccept-Encoding: identity\r\nConnection: keep-alive\r\n"
        self._idle: list[H1Connection] = []  # the longest idle first
        self._open: set[H1Connection] = set()
        self._heads = AnswerHeads()  # the latest
        self._sweep: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Future[None] | None = None
        self._closed = False

    async def send(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | memoryview,
        *,
        fresh: bool = False,
    ) -> H1Response:
        head = self._request_head(method, path, headers, len(body))
        connection = None if fresh else self._take_idle()
        reused = connection is not None
        if connection is None:
            connection = await self._connect()
        answer = connection.exchange(head, body, reused=reused, bodiless=method == "HEAD")
        del body  # the connection drops the body when it is sent, so it is freed before the answer arrives
        return await answer

    async def send_framed(self, head: RequestHead, value: str, body: bytes, *, fresh: bool = False) -> H1Response:
        """`send` with a head of `frame`; `value`: of its header."""
        lines = b"%s%s%s%d\r\n\r\n" % (head.before, value.encode(), head.after, len(body))
        connection = None if fresh else self._take_idle()
        reused = connection is not None
        if connection is None:
            connection = await self._connect()
        answer = connection.exchange(lines, body, reused=reused)
        del body
        return await answer

    def frame(self, path: str, headers: Sequence[tuple[str, str]], variable: str) -> RequestHead:
        """The head of POST requests that differ only in the value of the header `variable` and in their length."""
        mark = "-VALUE-"
        marked = [(name, mark if name == variable else value) for name, value in headers]
        before, _, after = self._request_head("POST", path, marked, 1).partition(f"{variable}: {mark}".encode())
        return RequestHead(before + f"{variable}: ".encode(), after.removesuffix(b"1\r\n\r\n"))

    def _request_head(self, method: str, path: str, headers: Sequence[tuple[str, str]], length: int) -> bytes:
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
        if fields.count("\n") != len(headers) or fields.count("\r") != len(headers) or not _one_word(path):
            raise ValueError("a line break in a request header, or white space in the path")
        if length or method not in ("GET", "HEAD"):
            fields += f"Content-Length: {length}\r\n"
        return f"{method} {path}{self._head}{fields}\r\n".encode("latin-1")

    async def _connect(self) -> H1Connection:
        if self._closed:
            raise ConnectFailure("the client is closed")
        connection = H1Connection(asyncio.get_running_loop(), self._put_idle, self._forget, self._heads)
        try:
            async with asyncio.timeout(self.connect_timeout):
                await connection.loop.create_connection(lambda: connection, self._host, self._port)
        except TimeoutError as error:
            raise ConnectFailure(f"no connection within {self.connect_timeout:g} s") from error
        except (OSError, RuntimeError, MemoryError) as error:
            kind = shortage_of(error, address=(self._host, self._port))
            if kind is not None:
                raise OwnFailure(kind, unsent=True) from error
            if not isinstance(error, OSError):
                raise
            raise ConnectFailure(str(error)) from error
        if self._closed:
            connection.drop()
            raise ConnectFailure("the client is closed")
        if connection.transport is not None:
            self._open.add(connection)
        return connection

    def _take_idle(self) -> H1Connection | None:
        """An open connection that no request uses; None = there is none."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.transport is None or connection.transport.is_closing():
                continue
            if connection.loop.time() - connection.idle_since > self._max_idle:
                connection.drop()
                continue
            return connection
        return None

    def _put_idle(self, connection: H1Connection) -> None:
        """The request of this connection has ended."""
        if self._closed:
            connection.drop()
            return
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = connection.loop.call_later(self._max_idle, self._drop_old)

    def _drop_old(self) -> None:
        """Close expired idle connections. One timer serves all of them; it is set to the expiry of the oldest."""
        self._sweep = None
        idle = self._idle
        while idle:
            connection = idle[0]
            due = connection.idle_since + self._max_idle - connection.loop.time()
            if due > 0.001:
                self._sweep = connection.loop.call_later(due, self._drop_old)
                return
            idle.pop(0).drop()

    def _forget(self, connection: H1Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._open and self._all_lost is not None and not self._all_lost.done():
            self._all_lost.set_result(None)

    async def close(self) -> None:
        self._closed = True
        self._idle.clear()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in list(self._open):
            connection.fail(ResetFailure("the client was closed"))
        if self._open:
            self._all_lost = asyncio.get_running_loop().create_future()
            await self._all_lost


def _one_word(path: str) -> bool:
    return path.isascii() and path.isprintable() and " " not in path


_encode = msgspec.json.Encoder().encode


# -- the client of an origin, and requests that are sent again where a pooled connection turned out to be closed -------


def open_client(origin: tuple[str, str, int], *, connect_timeout: float, max_idle: float = 4.0) -> UpstreamClient:
    """A client for `origin` (scheme, host, port). `connect_timeout` and `max_idle` (how long an unused connection is
    kept; stay below the backend's own keep-alive, 5 s for vLLM) are in seconds. Opens no connection yet."""
    if origin[0] == "http":
        return H1Client(origin, connect_timeout, max_idle)
    from .aio import AioClient  # the import takes a quarter of the start-up time, and most fleets use plain http

    return AioClient(origin, connect_timeout, max_idle)


async def post_json(client: UpstreamClient, path: str, headers: Sequence[tuple[str, str]], content: object) -> Response:
    """POST `content` as JSON; returns when the head of the answer has arrived. A pooled connection that the server had
    closed is replaced by a new one, once: the request was not processed. Raises as `Client.send`, and what encoding
    raises."""
    try:
        # The retry encodes again: a variable for the bytes would keep them in memory until the answer arrives.
        return await client.send("POST", path, headers, _encode(content))
    except StaleConnection:
        pass
    return await client.send("POST", path, headers, _encode(content), fresh=True)


async def post_framed(client: H1Client, head: RequestHead, id_: str, content: object) -> Response:
    """As `post_json`, with a head that is known but for its id."""
    try:
        return await client.send_framed(head, id_, _encode(content))
    except StaleConnection:
        pass
    return await client.send_framed(head, id_, _encode(content), fresh=True)
