"""Reads answers over httpx with a limit of bytes and seconds. Nothing is retained after an answer.

Used for everything that is not an inference request: probes, exporters, the commands. A compressed body is decoded in
steps, so that a small body that decodes to a large one needs bounded memory and never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from gateway.domain.upstream import ProtocolFailure
from gateway.errors import fresh
from gateway.transport.inflate import Inflater, inflater_for

KEPT = 64 * 1024  # bytes that are kept of an answer that is too large
RECEIVE_BUFFER = 64 * 1024  # bytes
PIECES = 64  # small pieces of a body that are read before other tasks run


class TrustOnDemand(ssl.SSLContext):
    """Trust in the public certificate authorities: httpx's own context, made by its first use. Their bundle takes 20 ms
    to read and 2 MB, and a fleet on the LAN speaks plain HTTP."""

    _made: ssl.SSLContext | None = None

    def __new__(cls) -> TrustOnDemand:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    @property
    def made(self) -> ssl.SSLContext:
        if self._made is None:
            self._made = httpx.create_ssl_context(trust_env=False)
        return self._made

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        self.made.set_alpn_protocols(alpn_protocols)

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self.made.wrap_bio(*arguments, **options)


class Oversized(httpx.HTTPError):
    """The answer is larger than the limit. `status`: its HTTP status. `beginning`: its first `KEPT` bytes."""

    def __init__(self, message: str, status: int, beginning: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.beginning = beginning


class Undecodable(httpx.HTTPError):
    """The body is not what its `content-encoding` says."""


def async_client(timeout: httpx.Timeout | float, **options: Any) -> httpx.AsyncClient:
    """A client that follows no redirects, keeps no cookies and ignores proxies of the environment. It has no common
    limit of connections, so a server that keeps its connections open does not block requests to others."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    # A closed connection keeps its unread bytes until garbage collection; a small buffer limits them.
    buffer = [(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)]
    transport = httpx.AsyncHTTPTransport(TrustOnDemand(), limits=limits, trust_env=False, socket_options=buffer)
    return httpx.AsyncClient(
        timeout=timeout, trust_env=False, follow_redirects=False, cookies=_no_cookies(), transport=transport, **options
    )


def client(timeout: httpx.Timeout | float, **options: Any) -> httpx.Client:
    """The same as a synchronous client, for commands that send one request at a time."""
    return httpx.Client(timeout=timeout, trust_env=False, follow_redirects=False, cookies=_no_cookies(), **options)


async def fetch(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    most: int,
    seconds: float,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> httpx.Response:
    """The whole answer, its body decoded: at most `most` bytes, after at most `seconds` in all. Raises
    `httpx.HTTPError`: `Oversized`, `Undecodable`, `httpx.ReadTimeout` beyond the seconds, and httpx's own."""
    try:
        async with asyncio.timeout(seconds):
            async with client.stream(method, url, headers=identity(headers), **options) as response:
                body = await _read(response, most)
    except TimeoutError:
        late = f"no whole answer within {seconds:g} s"
        raise httpx.ReadTimeout(late, request=httpx.Request(method, url)) from None
    return _whole(response, body.finished())


async def read(response: httpx.Response, most: int) -> bytes:
    """The body of a streamed answer, decoded. Raises `Oversized` beyond `most` bytes, else as `fetch`."""
    return (await _read(response, most)).finished()


async def _read(response: httpx.Response, most: int) -> _Body:
    """Read the body up to the limit. Failures are raised later, by `finished`: an exception raised here would keep
    httpx's buffers alive in its traceback until garbage collection."""
    body = _Body(response, most)
    pieces = 0
    async for wire in response.aiter_raw():
        for _ in body.take(wire):
            await asyncio.sleep(0)
        if body.failure is not None:
            break
        pieces += 1
        if pieces % PIECES == 0:
            await asyncio.sleep(0)
    return body


async def lines(response: httpx.Response, most: int) -> AsyncIterator[bytes]:
    """The lines of a streamed answer, without their ends. Raises `Oversized` for one of more than `most` bytes, and for
    a compressed answer `Undecodable`: ask for `identity`."""
    if inflater_of(response) is not None:
        raise Undecodable("the answer is compressed though it was asked for as it is")
    rest = bytearray()
    async for wire in response.aiter_raw():
        *whole, last = wire.split(b"\n")
        for line in whole:
            yield bytes(rest) + line
            rest.clear()
        rest += last
        if len(rest) > most:
            raise Oversized(f"answers a line of more than {most:,} bytes", response.status_code, bytes(rest[:KEPT]))
    if rest:
        yield bytes(rest)


def fetch_now(
    client: httpx.Client,
    method: str,
    url: str,
    *,
    most: int,
    seconds: float,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> httpx.Response:
    """The same as `fetch`, synchronous. The time limit is checked whenever bytes have arrived."""
    until = time.monotonic() + seconds
    with client.stream(method, url, headers=identity(headers), **options) as response:
        body = _Body(response, most)
        for wire in response.iter_raw():
            for _ in body.take(wire):
                pass
            if body.failure is not None:
                break
            if time.monotonic() >= until:
                raise httpx.ReadTimeout(f"no whole answer within {seconds:g} s")
    return _whole(response, body.finished())


class _Body:
    """The part of one answer that has been read. `failure`: why reading stopped."""

    def __init__(self, response: httpx.Response, most: int) -> None:
        self.failure: httpx.HTTPError | None = None
        self._status = response.status_code
        self._most = most
        self._read = bytearray()
        self._inflater = inflater_of(response)

    def take(self, wire: bytes) -> Iterator[None]:
        """Adds received bytes; yields after each step of decoding."""
        if self._inflater is None:
            self._add(wire)
            return
        try:
            self._inflater.feed(wire)
            while self.failure is None and (data := self._inflater.step()):
                self._add(data)
                yield
        except ProtocolFailure as failure:
            self.failure = Undecodable(str(failure))

    def _add(self, data: bytes) -> None:
        room = self._most - len(self._read)
        self._read += data[:room]
        if len(data) > room:
            beginning = bytes(self._read[:KEPT])
            self._read.clear()
            self.failure = Oversized(f"answers more than {self._most:,} bytes", self._status, beginning)

    def finished(self) -> bytes:
        """The whole body. Raises `Oversized` and `Undecodable`."""
        if self.failure is not None:
            raise fresh(self.failure)
        try:
            if self._inflater is not None:
                self._inflater.finish()
        except ProtocolFailure as failure:
            raise Undecodable(str(failure)) from None
        return bytes(self._read)


def inflater_of(response: httpx.Response) -> Inflater | None:
    """The decoder that the response's body needs; None = it is not compressed. Raises `Undecodable`."""
    try:
        return inflater_for(response.headers)
    except ProtocolFailure as failure:
        raise Undecodable(str(failure)) from None


def _whole(response: httpx.Response, body: bytes) -> httpx.Response:
    kept = {name: value for name in ("content-type", "location") if (value := response.headers.get(name)) is not None}
    return httpx.Response(response.status_code, headers=kept, content=body, request=response.request)


def identity(headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """These headers with `accept-encoding: identity`."""
    return {**(headers or {}), "accept-encoding": "identity"}


def _no_cookies() -> CookieJar:
    """A jar that stays empty: otherwise httpx would send one server's cookies to other servers on the same host."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))
