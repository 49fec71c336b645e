"""The response of a plain HTTP/1.1 connection (`h1_connection.py`).

The connection appends the body's pieces here as they arrive. A reader that finds pieces takes them without suspending;
only a reader that has to wait creates a Future. There is no task, timer or lock per chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.domain.upstream import ResetFailure, UpstreamFailure, read_counted
from gateway.errors import fresh

from .inflate import Inflater, inflater_for


class Carrier(Protocol):
    """The part of a connection's interface that its response uses."""

    loop: asyncio.AbstractEventLoop
    reading_paused: bool

    def resume_reading(self) -> None: ...

    def free(self) -> None:
        """The answer was read: the connection may serve the next exchange."""

    def drop(self) -> None:
        """Close the socket now."""


class H1Response:
    """A `Response` (domain/upstream.py). `reused`: the answer came over a pooled connection."""

    __slots__ = (
        "_connection",
        "_inflater",
        "_untaken",
        "_waiter",
        "complete",
        "failure",
        "headers",
        "pieces",
        "reused",
        "sink",
        "size",
        "status",
    )

    def __init__(self, connection: Carrier, reused: bool) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.reused = reused
        self.pieces: list[bytes | bytearray] = []  # received and not yet read, not decoded
        self.size = 0  # bytes in `pieces`
        self.complete = False
        self._connection: Carrier | None = connection
        self.failure: UpstreamFailure | None = None
        self._inflater: Inflater | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.sink: Callable[[bytes], bool] | None = None  # takes what arrives while the reader waits (`read_past`)
        self._untaken = b""  # what the sink did not deal with

    async def read_some(self) -> bytes:
        if self._inflater is not None:
            return await self._read_decoded(self._inflater)
        if not self.pieces and not self.complete:
            await self.arrival()
        return self._take()

    async def read_past(self, take: Callable[[bytes], bool]) -> bytes:
        """As `read_past` of domain/upstream.py. An error in `take` is raised here."""
        while True:
            if self.pieces or self.complete or self.failure is not None or self._inflater is not None:
                data = await self.read_some()
                if not (data and take(data)):
                    return data
                continue
            self.sink = take
            try:
                await self.arrival()
            finally:
                self.sink, data, self._untaken = None, self._untaken, b""
            if data:
                return data

    def pass_on(self) -> None:
        """Give what has arrived to the `sink`."""
        if self._waiter is not None and not self._waiter.done():  # else the reader is about to see it
            self.pass_piece(self._take())

    def pass_piece(self, data: bytes) -> bool:
        """Give this piece to the `sink`; its reader is woken where it is to look at it. False: nothing was done."""
        sink, waiter = self.sink, self._waiter
        if sink is None or self.pieces or waiter is None or waiter.done():
            return False
        try:
            if sink(data):
                return True
        except Exception as error:
            waiter.set_exception(error)
        else:
            self._untaken = data
            waiter.set_result(None)
        self.sink = None
        return True

    async def _read_decoded(self, inflater: Inflater) -> bytes:
        if inflater.more:  # a few compressed bytes may decode to many: let other tasks run in between
            await asyncio.sleep(0)
            if self._inflater is None:  # aborted meanwhile
                return self._take()
        while not (data := inflater.step()):
            if not self.pieces and not self.complete:
                await self.arrival()
            wire = self._take()
            if not wire:
                inflater.finish()
                return b""
            inflater.feed(wire)
        return data

    async def read_all(self, limit: int) -> bytes:
        return await read_counted(self, limit)

    def abort(self, reason: UpstreamFailure | None = None) -> None:
        connection = self._connection
        if connection is None:
            return
        self._connection = None
        self._inflater = None
        self.pieces.clear()
        self.complete = False
        self.failure = None
        self.fail(reason or ResetFailure("aborted by the gateway"))
        connection.drop()

    def release(self) -> None:
        connection = self._connection
        if connection is None:
            return
        if not self.complete:
            self.abort()
            return
        self._connection = None
        connection.free()

    def _take(self) -> bytes:
        pieces = self.pieces
        if not pieces:
            if self.failure is not None:
                raise fresh(self.failure)
            return b""
        data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.size = 0
        if self._connection is not None and self._connection.reading_paused:
            self._connection.resume_reading()
        return data

    async def head(self) -> None:
        """Waits for the head of the answer. Raises UpstreamFailure; then the socket is closed."""
        assert self._connection is not None
        try:
            if not self.status:
                await self.arrival()
            if not self.status:
                if self.failure is not None:
                    raise fresh(self.failure)
                raise ResetFailure("the backend closed the connection before the answer's head")
        except BaseException:
            if self._connection is not None:
                self._connection.drop()
            raise

    @property
    def is_chunked(self) -> bool:
        """Does its body come in chunks?"""
        return self.headers.get("transfer-encoding") == "chunked"

    async def arrival(self) -> None:
        """Waits for the next part of the answer: the head, a piece of the body, its end, or a failure."""
        if self.failure is not None:
            return
        assert self._connection is not None
        waiter = self._waiter = self._connection.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, failure: UpstreamFailure) -> None:
        """Bytes that arrived before stay readable; after them, reads raise `failure`."""
        if self.failure is None and not self.complete:
            self.failure = failure
            self.wake()

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head has arrived. Raises `ProtocolFailure` for a body that could not be decoded."""
        if "content-encoding" in headers:
            self._inflater = inflater_for(headers)
        self.headers = headers
        self.status = status
        self.wake()

    @property
    def ends_with_connection(self) -> bool:
        """Does the body end with the connection (RFC 9112 6.3)? It does without chunks and without a length."""
        transfer = self.headers.get("transfer-encoding")
        if transfer is not None:
            return not transfer.lower().rstrip().endswith("chunked")
        return "content-length" not in self.headers
