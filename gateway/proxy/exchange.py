"""One exchange with a client, as the request path sees it: a body to read, an answer to write, and a callback when
the client leaves. `AsgiExchange` calls the ASGI `send` itself."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

from gateway.admission.access import Caller
from gateway.admission.memory import Memory, Share
from gateway.domain.request import OwnForm
from gateway.errors import GatewayError
from gateway.proxy.header_map import header_map

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

# The key in the scope under which our listener (connection.py) puts the connection. With it no task has to watch
# `receive` for a client that leaves.
CONNECTION = "gateway.connection"

MEMBERS_MOST = 100  # of a gzip body
PIECE = 64 * 1024  # bytes of an answer written at a time; the next piece waits until the client has read some
STEP = 1024 * 1024  # bytes of a compressed body that are inflated before other tasks run


def nothing() -> None:
    """A callback that does nothing."""


class ClientGone(Exception):
    """The client closed its connection, or its sending half."""


class Flow(Protocol):
    """How fast a client reads. `write_paused`: it has much to read that was written before, so that `write` waits."""

    @property
    def write_paused(self) -> bool: ...


class Waited:
    """Each write is waited for."""

    write_paused = True


WAITED = Waited()


class Exchange(Protocol):
    """`headers` have lower-case names; the values of a repeated header are joined (header_map.py). `started`: a
    response head was sent."""

    caller: Caller  # who sends the request, by its headers
    share: Share  # the memory that the request holds; its handler releases it

    @property
    def own(self) -> OwnForm | None:
        """After `read_body`: the request as it came, where a translation was returned."""
        ...

    @property
    def session(self) -> bytes | None:
        """After `read_body`: the id of the session in a body that was translated, where the translation has it not."""
        ...

    @property
    def headers(self) -> dict[bytes, bytes]: ...

    @property
    def started(self) -> bool: ...

    @property
    def peer(self) -> str:
        """The client's address."""
        ...

    def task(self) -> asyncio.Task[None]:
        """The task that runs the request. An interruption cancels it."""
        ...

    async def read_body(self, limit: int) -> bytes:
        """The whole body, decoded if it is gzip. Raises `request_too_large` beyond `limit` bytes, `memory_full`,
        `ClientGone`."""
        ...

    def on_leave(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when the client leaves. Valid from the end of the body until `stop_watching`."""
        ...

    def stop_watching(self) -> None:
        """Called before the answer is complete, because afterwards a client may close its connection."""
        ...

    async def start(self, status: int, headers: Headers) -> None: ...

    async def write(self, data: bytes) -> None:
        """Send a part of the body. Waits while the client reads slower than we send."""
        ...

    @property
    def flow(self) -> Flow:
        """Would `write` wait?"""
        ...

    def put(self, data: bytes) -> None:
        """`write` without waiting, unless `flow.write_paused`."""
        ...

    async def finish(self, data: bytes = b"", progress: Callable[[], object] = nothing) -> None:
        """Send the last part. An answer that is *not* finished when the request ends is cut off: the client sees the
        end of the connection instead of the end of the answer. A long one is sent in pieces, and `progress` is
        called whenever the client has read some."""
        ...


class AsgiExchange:
    """An exchange on any ASGI server."""

    __slots__ = (
        "_finished",
        "_receive",
        "_scope",
        "_send",
        "_watcher",
        "caller",
        "share",
        "started",
    )

    own: OwnForm | None = None
    session: bytes | None = None

    def __init__(self, scope: Scope, receive: Receive, send: Send, memory: Memory) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self._finished = False
        client = scope.get("client")
        self.caller = Caller(header_map(scope["headers"]), client[0] if client else "local")
        self.share = Share(memory, self.caller)
        self.started = False

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self.caller.headers

    @property
    def peer(self) -> str:
        return self.caller.peer

    def task(self) -> asyncio.Task[None]:
        return running_task()

    async def read_body(self, limit: int) -> bytes:
        """Reads the whole body at once: uvicorn stops reading at 64 KiB of unread body, and would then not notice
        that the client leaves."""
        if declares_more(self.headers.get(b"content-length", b""), limit):
            raise too_large(limit)
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        self.share.add(len(body))
        if message.get("more_body"):
            body = await self._read_rest(body, limit)
        if len(body) > limit:
            raise too_large(limit)
        encoding = self.headers.get(b"content-encoding")
        return body if encoding is None else await decode(body, encoding.lower(), limit, self.share)

    async def pieces(self, limit: int) -> AsyncIterator[bytes]:
        """Instead of `read_body`: the body as it comes, neither kept nor counted. Raises `request_too_large` beyond
        `limit` bytes, `ClientGone`."""
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece: bytes = message.get("body", b"")
            size, more = size + len(piece), message.get("more_body", False)
            if size > limit:
                raise too_large(limit)
            if piece:
                yield piece

    async def _read_rest(self, first: bytes, limit: int) -> bytes:
        body = bytearray(first)  # a list of tiny pieces would take a multiple of their memory
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece: bytes = message.get("body", b"")
            self.share.add(len(piece))
            body += piece
            if len(body) > limit:
                raise too_large(limit)
            if not message.get("more_body"):
                return bytes(body)

    def on_leave(self, callback: Callable[[], object]) -> None:
        connection = self._scope.get("extensions", {}).get(CONNECTION)
        if connection is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch(callback))
        else:
            connection.on_leave(callback)

    def stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        elif not self._finished and (connection := self._scope.get("extensions", {}).get(CONNECTION)) is not None:
            connection.on_leave(None)  # afterwards the callback belongs to the next request

    async def _watch(self, callback: Callable[[], object]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        callback()

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    flow = WAITED

    def put(self, data: bytes) -> None:
        raise NotImplementedError("an ASGI server is always waited for")

    async def finish(self, data: bytes = b"", progress: Callable[[], object] = nothing) -> None:
        for at in range(0, len(data) - PIECE, PIECE):
            await self._send({"type": "http.response.body", "body": data[at : at + PIECE], "more_body": True})
            progress()
        last = data[-(len(data) % PIECE or PIECE) :] if len(data) > PIECE else data
        await self._send({"type": "http.response.body", "body": last, "more_body": False})
        self._finished = True


def bounded(receive: Receive, limit: int) -> Receive:
    """A `receive` that raises `request_too_large` for a body of more than `limit` bytes. For code that reads a whole
    body into memory."""
    size = 0

    async def receive_some() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise too_large(limit)
        return message

    return receive_some


def too_large(limit: int) -> GatewayError:
    return GatewayError("request_too_large", f"The request body is larger than {limit} bytes (`server.max_body`).")


def declares_more(length: bytes, limit: int) -> bool:
    """Is a content-length larger than `limit`? (`int` refuses numbers of thousands of digits.)"""
    return length.isdigit() and (len(length) > 18 or int(length) > limit)


async def decode(body: bytes, encoding: bytes, limit: int, share: Share) -> bytes:
    """A body without its content-encoding. Raises 415 for other encodings than gzip, 413 beyond `limit`, and
    `memory_full` as soon as the inflated bytes exceed the memory. Other tasks run in between."""
    if encoding in (b"identity", b""):
        return body
    if encoding not in (b"gzip", b"x-gzip"):
        message = "Send the request body plain or with content-encoding gzip."
        raise GatewayError("unsupported_encoding", message)
    inflater = zlib.decompressobj(wbits=31)
    decoded, at, rest = bytearray(), 0, b""
    members = 1
    while not inflater.eof or inflater.unused_data or at < len(body):
        if inflater.eof:  # another member follows (RFC 1952)
            members += 1
            if members > MEMBERS_MOST:
                raise GatewayError("invalid_request_body", f"The gzip body has more than {MEMBERS_MOST} members.")
            rest, inflater = inflater.unused_data, zlib.decompressobj(wbits=31)
        if not rest:
            rest = body[at : at + PIECE]
            at += len(rest)
        try:
            piece = inflater.decompress(rest, min(STEP, limit + 1 - len(decoded)))
        except zlib.error as error:
            raise GatewayError("invalid_request_body", f"The request body is not valid gzip: {error}") from None
        if not piece and not rest:
            raise GatewayError("invalid_request_body", "The gzip request body ends too early.")
        rest = inflater.unconsumed_tail
        share.add(len(piece))
        decoded += piece
        if len(decoded) > limit:
            raise too_large(limit)
        if len(decoded) >= STEP:
            await asyncio.sleep(0)
    share.release(len(body))  # the compressed body is no longer held
    return bytes(decoded)


def running_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task
