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


# -- heads that are known ----------------------------------------------------------------------------------------------
# An answer is recognised whose head is that of the answer before, with another length and another date: nearly all
# answers of a server are. All other bytes being equal, what the parser has read of the first one holds for the others.

DATE = 29  # characters of a date (RFC 9110, 5.6.7)
LEARNED_MOST = 16  # heads of answers that are remembered, one after the other: some servers never send one twice
NUMBER_MOST = 18  # digits of a length
HEAD_MOST = 4096  # bytes of a head that is kept
_END = b"\r\n\r\n"
_DATE, _LENGTH = b"\r\ndate: ", b"\r\ncontent-length: "


class KnownHead:
    """`headers`: as the parser has read them, with the length and the date of the first answer."""

    __slots__ = ("_after", "_before", "_between", "_date_end", "_number_at", "_start", "headers")

    def __init__(self, before: bytes, date: bytes, between: bytes, after: bytes, headers: Mapping[str, str]) -> None:
        self._before = before  # up to the date
        self._between = between  # from there to the number of the length
        self._start = before + date + between  # with the latest date
        self._after = after  # behind the number
        self._date_end = len(before) + len(date)
        self._number_at = len(self._start)
        self.headers = headers

    def body_of(self, data: bytes) -> bytes | None:
        """The body, if `data` is a whole answer with this head and nothing else; else None."""
        if not data.startswith(self._start) and not self._starts_at_another_time(data):
            return None
        at = self._number_at
        end = data.find(b"\r", at, at + NUMBER_MOST + 1)
        number = data[at:end]
        if not data.startswith(self._after, end) or not number.isdigit():
            return None
        begin = end + len(self._after)
        return data[begin:] if int(number) == len(data) - begin else None

    def _starts_at_another_time(self, data: bytes) -> bool:
        if not data.startswith(self._before) or not data.startswith(self._between, self._date_end):
            return False
        if not _may_be_date(data[len(self._before) : self._date_end]):
            return False
        self._start = data[: self._number_at]
        return True


def known_head(data: bytes, headers: Mapping[str, str]) -> KnownHead | None:
    """What recognises the head of the whole answer `data`, which the parser has read; None = nothing does. Without a
    date, or with one behind the length, it is not recognised."""
    end = data.find(_END)
    head = data[: end + len(_END)]
    lower = head.lower()
    date_at, length_at = lower.find(_DATE) + len(_DATE), lower.find(_LENGTH) + len(_LENGTH)
    if not 0 < end <= HEAD_MOST or date_at < len(_DATE) or length_at < date_at + DATE:
        return None
    if lower.count(_DATE.strip()) != 1 or lower.count(_LENGTH.strip()) != 1:
        return None
    date, number = head[date_at : date_at + DATE], head[length_at : head.find(b"\r", length_at)]
    if b"\r" in date or not number.isdigit():
        return None
    between = head[date_at + DATE : length_at]
    return KnownHead(head[:date_at], date, between, head[length_at + len(number) :], headers)


class KnownStreamHead:
    """The head of an answer in chunks. `head`: as it came first."""

    __slots__ = ("_after", "_after_at", "_before", "_date", "_end", "head")

    def __init__(self, head: bytes, date_at: int) -> None:
        """`date_at`: where in the head its date is; -1 = it has none."""
        self.head = head
        self._after_at = date_at + DATE if date_at >= 0 else len(head)
        self._before = head[:date_at] if date_at >= 0 else head
        self._after = head[self._after_at :]
        self._date = head[len(self._before) : self._after_at]
        self._end = len(head)

    def end_in(self, data: bytes) -> int:
        """The index behind the head, if `data` begins with it; else 0."""
        if not data.startswith(self._before) or not data.startswith(self._after, self._after_at):
            return 0
        date = data[len(self._before) : self._after_at]
        if date != self._date:
            if not _may_be_date(date):
                return 0
            self._date = date
        return self._end


def known_stream_head(data: bytes) -> KnownStreamHead | None:
    """What recognises the head of the answer in chunks that begins `data`, as parsed; None = nothing does."""
    end = data.find(_END)
    head = data[: end + len(_END)]
    lower = head.lower()
    if not 0 < end <= HEAD_MOST or lower.count(_DATE.strip()) > 1:
        return None
    at = lower.find(_DATE)
    date_at = at + len(_DATE) if at >= 0 else -1
    return None if at >= 0 and b"\r" in head[date_at : date_at + DATE] else KnownStreamHead(head, date_at)


def _may_be_date(date: bytes) -> bool:
    return date.isascii() and b"\r" not in date and b"\n" not in date


class AnswerHeads:
    """The heads of answers that one connection knows: of the latest `whole` one, and of the latest `stream`. It begins
    with those of other connections to the same backend (`latest`). Both `learn` methods get an answer with status 200,
    behind which the connection stays open."""

    __slots__ = ("_latest", "_learned", "stream", "whole")

    def __init__(self, latest: AnswerHeads | None = None) -> None:
        self.whole: KnownHead | None = latest.whole if latest is not None else None
        self.stream: KnownStreamHead | None = latest.stream if latest is not None else None
        self._latest = latest
        self._learned = 0

    def learn_whole(self, data: bytes, headers: Mapping[str, str]) -> None:
        """The answer `data` has come in one read."""
        usual = "content-length" in headers and headers.keys().isdisjoint(("transfer-encoding", "content-encoding"))
        if usual and self._learned < LEARNED_MOST:
            self._learned += 1
            self.whole = known_head(data, headers)
            if self._latest is not None:
                self._latest.whole = self.whole

    def learn_stream(self, data: bytes, headers: Mapping[str, str]) -> None:
        """The read `data` begins with the head of an answer in chunks."""
        usual = headers.keys().isdisjoint(("content-length", "content-encoding"))
        if usual and self._learned < LEARNED_MOST:
            self._learned += 1
            self.stream = known_stream_head(data)
            if self._latest is not None:
                self._latest.stream = self.stream
