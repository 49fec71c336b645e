"""The pace of a client: a body that arrives too slowly, and a last answer that is not read."""

from __future__ import annotations

import asyncio

from gateway.errors import GatewayError
from gateway.http.client_connection import BoundedFlow
from gateway.http.listener import Listener
from gateway.http.request_reader import RequestReader


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
