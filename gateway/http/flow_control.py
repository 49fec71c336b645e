"""A client that does not read what was written to it: its connection is cut, so that nothing is kept for it. And when
a connection is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

PATIENCE = 30.0  # seconds in which a client must take some of what waits for it


class Unread:
    """Watches one connection while more waits to be sent than its transport likes to hold. `is_watched`: does a request
    of its own look after that? (watch.py, with the backend's `idle`.)"""

    __slots__ = ("_is_watched", "_timer", "_transport", "_waiting")

    def __init__(self, transport: asyncio.Transport, is_watched: Callable[[], bool]) -> None:
        self._transport = transport
        self._is_watched = is_watched
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0  # bytes at the last look

    def paused(self) -> None:
        """The transport has more to send than it likes to hold."""
        if self._timer is None:
            self._look_later()

    def resumed(self) -> None:
        """It has not, or the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._waiting = self._transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() >= self._waiting and not self._is_watched():
            self._transport.abort()
        else:
            self._look_later()


class Flow(FlowControl):
    """uvicorn's; it resumes reading whenever the app asks for more of a body."""

    full = False  # what came ahead is enough: not to be resumed by the app

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()
