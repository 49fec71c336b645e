"""Flow control of a connection: a client that reads too slowly is cut off, and reading stops while enough is
buffered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

PATIENCE = 30.0  # seconds within which a client must read some of what is buffered for it


class SlowReaderTimeout:
    """Aborts a connection whose client reads nothing for PATIENCE seconds while the write buffer is above its limit."""

    __slots__ = ("_timer", "_transport", "_waiting")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0  # bytes in the buffer at the last check

    def paused(self, is_timed: Callable[[], bool]) -> None:
        """The write buffer is above its limit. `is_timed`: has the present request a timer of its own for that (the
        backend's `idle`)?"""
        if self._timer is None:
            self._schedule(is_timed)

    def resumed(self) -> None:
        """The write buffer is below its limit again, or the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, is_timed: Callable[[], bool]) -> None:
        self._waiting = self._transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._check, is_timed)

    def _check(self, is_timed: Callable[[], bool]) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() >= self._waiting and not is_timed():
            self._transport.abort()
        else:
            self._schedule(is_timed)


class Flow(FlowControl):
    """uvicorn's, which resumes reading whenever the app asks for more of a body: not while `full`."""

    full = False  # enough pipelined bytes are buffered

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()
