"""Splits the bytes of one connection into requests, one at a time, so that no request is read out of another's body."""

from __future__ import annotations

import asyncio

from gateway.admission.access import Caller
from gateway.domain.endpoints import Endpoint
from gateway.errors import GatewayError
from gateway.http.chunked import ChunkedBody
from gateway.http.client_connection import BoundedFlow
from gateway.http.listener import Listener
from gateway.http.request_head import (
    END,
    MAX_BYTES,
    Head,
    RepeatedHead,
    check_lines,
    parse_head,
    parse_request_line,
    repeated_head,
    too_large,
)
from gateway.proxy.header_map import header_map

# What the next byte belongs to: a head, a body, a pipelined request (behind the one that is answered), or nothing.
HEAD, BODY, PIPELINED, NOTHING = range(4)


class RequestReader:
    """`feed` it bytes. It calls `head_began` when only a part of a head is there, then `head_received`, `body_received`
    (for each part) and `body_ended`, and reads nothing more until `next_request`."""

    def __init__(self) -> None:
        self.state = HEAD
        self.received = 0  # bytes of the body
        self._begun: bytearray | None = None  # the part of a head that is there
        self._checked = 0  # bytes of it that were checked
        self._blank = False  # an empty line came before it
        self._left = 0  # bytes of the body to come
        self._chunked: ChunkedBody | None = None
        self._raw_head = b""  # of the last request whose head was parsed
        self._repeated: RepeatedHead | None = None  # recognises that head when it comes again

    def head_began(self) -> None:
        raise NotImplementedError

    def head_received(self, head: Head) -> None:
        raise NotImplementedError

    def known_head(self, raw: bytes) -> RepeatedHead | None:
        """What recognises this head, if it came on another connection, or before the latest one."""
        raise NotImplementedError

    def body_received(self, body: bytes) -> None:
        raise NotImplementedError

    def body_ended(self) -> None:
        raise NotImplementedError

    @property
    def request_whole(self) -> bool:
        """The request was read to its end; the next byte belongs to another one."""
        return self.state == PIPELINED

    def next_request(self) -> None:
        self.state = HEAD

    def caller_of(self, head: Head, peer: str, endpoint: Endpoint) -> Caller:
        """Whose request has this head, the latest one: the same object for a head that is repeated."""
        if head.repeated is not None:
            return head.repeated.caller
        headers = header_map(head.headers)
        headers.pop(b"content-length", None)  # of this request only
        caller = Caller(headers, peer)
        self._repeated = repeated_head(self._raw_head, head, caller, endpoint)
        return caller

    def whole_request(self, data: bytes) -> tuple[RepeatedHead, bytes] | None:
        """(its head, its body), where `data` is a whole request with the head of an earlier one, and nothing else. It
        is not read by that: `took_whole` follows, or `feed`."""
        repeated = self._repeated
        if repeated is None and (end := data.find(END)) >= 0:
            repeated = self._repeated = self.known_head(data[:end])
        if repeated is None or self._begun is not None or not repeated.is_usual:
            return None
        body = repeated.body_of(data)
        return None if body is None else (repeated, body)

    def took_whole(self, body: bytes) -> None:
        """The request of `whole_request` is read."""
        self.state, self._blank = PIPELINED, False
        self.received = len(body)

    def read_nothing(self) -> None:
        """From now on no byte is read as a request."""
        self.state = NOTHING
        self._begun, self._chunked = None, None

    def feed(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Read `data` from the index `at`. Returns (bytes, index): the input behind the request begins there. Raises
        GatewayError (400, 405, 431) for a malformed request."""
        while at < len(data):
            if self.state == BODY:
                data, at = self._read_body(data, at)
            elif self.state == HEAD:
                at = self._read_head(data, at)
            else:
                break
        return data, at

    def _read_head(self, data: bytes, at: int) -> int:
        """Returns the index behind the head, or the end of `data` when the head is not complete."""
        begun = self._begun
        if begun is None:
            if data.startswith(b"\r\n", at) and not self._blank:  # old clients send one behind a body
                self._blank = True
                return at + 2
            end = data.find(END, at)
            if end >= 0:
                self._parse_head(data[at:end])
                return end + 4
            begun = self._begun = bytearray()
            self._checked = 0
            self.head_began()
        before = len(begun)
        begun += data[at : at + MAX_BYTES + len(END)]
        end = begun.find(END, max(0, before - 3))
        if end >= 0:
            self._begun = None
            self._parse_head(bytes(begun[:end]))
            return at + end + 4 - before
        self._check_begun(begun)
        return len(data)

    def _check_begun(self, begun: bytearray) -> None:
        """Refuses a head as soon as its first part is invalid."""
        if len(begun) > MAX_BYTES:
            raise too_large()
        end = len(begun) - 1 if begun.endswith(b"\r") else len(begun)
        check_lines(bytes(begun[self._checked : end]))
        first = begun.find(b"\r\n", 0, end)
        if first >= self._checked:
            parse_request_line(bytes(begun[:first]))
        self._checked = end

    def _parse_head(self, raw: bytes) -> None:
        repeated = self._repeated
        head = repeated.match(raw) if repeated is not None else None
        if head is None and (other := self.known_head(raw)) is not None:
            self._repeated, head = other, other.match(raw)
        if head is None:
            head = parse_head(raw)
            self._raw_head = raw
        self._blank = False
        self.received = 0
        if head.length is None:
            self._chunked = ChunkedBody()
        else:
            self._left = head.length
        self.state = PIPELINED if head.length == 0 else BODY
        self.head_received(head)
        if self.state == PIPELINED:  # it was not refused
            self.body_ended()

    def _read_body(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Returns (bytes, index): the input behind the body begins there."""
        chunked = self._chunked
        if chunked is not None:
            body = chunked.feed(data[at:] if at else data)
            rest, at = chunked.rest, 0
            ended = rest is not None
            if ended:
                self._chunked = None
            data = rest or b""
        else:
            body = data if not at and len(data) <= self._left else data[at : at + self._left]
            at += len(body)
            self._left -= len(body)
            ended = not self._left
        if body:
            self.received += len(body)
            self.body_received(body)
        if ended and self.state == BODY:
            self.state = PIPELINED
            self.body_ended()
        return data, at


class PacedReader(RequestReader):
    """A `RequestReader` that its listener asks whether the client goes on. `now` is the loop's time."""

    listener: Listener
    transport: asyncio.Transport
    flow: BoundedFlow

    def __init__(self) -> None:
        super().__init__()
        self._window = (0.0, 0)  # (loop time, bytes) from which the rate of the body is measured
        self._end = (0.0, 0.0, 0)  # while closing: (since when, time of the last progress, `_progress` then)
        self._dropped = 0  # bytes that were discarded

    def refuse(self, error: GatewayError) -> None:
        raise NotImplementedError

    def body_began(self, now: float) -> None:
        self._window = (now, self.received)

    def closing_began(self, now: float) -> None:
        self._end = (now, now, self._progress())

    def sends_slowly(self, now: float) -> bool:
        """The body arrives more slowly than `body_rate`."""
        since, before = self._window
        return self.received - before < self.listener.limits.body_rate * (now - since)

    def check_body_rate(self, now: float) -> None:
        """Refuse a body that arrives too slowly. Time in which the gateway itself does not read is not counted."""
        since, _ = self._window
        if self.flow.read_paused:
            self._window = (now, self.received)
        elif now - since >= self.listener.limits.body_window:
            if self.sends_slowly(now):
                self.listener.count("slow_body")
                self.refuse(GatewayError("request_timeout", "The request's body came too slowly."))
            else:
                self._window = (now, self.received)

    def sends_answer(self) -> bool:
        """Has the client read some of its last answer since the last call, but not all?"""
        before, self._end = self._end, (0.0, 0.0, self._progress())
        return bool(self.transport.get_write_buffer_size()) and before[2] != self._end[2]

    def check_closing(self, now: float) -> None:
        """Abort a closing connection whose client reads nothing of the answer, or sends for too long."""
        limits, (since, last, before) = self.listener.limits, self._end
        linger = limits.begun if self.listener.stopping else limits.linger
        progress = self._progress()
        if progress != before:
            self._end = (since, now, progress)
            last = now
        if self.transport.get_write_buffer_size():
            if now - last >= limits.idle:
                self.transport.abort()
        elif now - last >= linger or now - since >= limits.linger_most:
            self.transport.abort()

    def _progress(self) -> int:
        """A number that changes when bytes are sent or discarded."""
        return self._dropped - self.transport.get_write_buffer_size()
