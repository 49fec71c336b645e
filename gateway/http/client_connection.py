"""The connection as the listener and the exchanges on it see it (`connection.py` implements it), and its flow control:
a client that reads too slowly is cut off, and reading stops while enough is buffered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from gateway.errors import GatewayError

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


class BoundedFlow(FlowControl):
    """uvicorn's, which resumes reading whenever the app asks for more of a body: not while `full`."""

    full = False  # enough pipelined bytes are buffered

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class Answering(Protocol):
    """An exchange that runs in a task of its own."""

    own_task: asyncio.Task[None] | None

    async def run(self) -> None: ...


class ClientConnection(Protocol):
    """One client connection. `address`: what it is counted by."""

    config: Config
    server_state: ServerState
    app_state: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    flow: BoundedFlow
    server: tuple[str, int | None] | None
    client: tuple[str, int] | None
    address: str | None
    gone: bool
    http_1_0: bool
    keep_alive: bool

    @property
    def request_whole(self) -> bool:
        """The request was read to its end."""

    def default_lines(self) -> bytes:
        """The header fields of every answer, each with its line end."""

    def on_leave(self, callback: Callable[[], object] | None) -> None:
        """Call `callback` once when the client leaves; None = no longer."""

    def start(self, exchange: Answering) -> None:
        """Run the exchange; the request's body is complete, or was refused."""

    def ended(self, exchange: Answering) -> None:
        """The exchange has run."""

    def discard_input(self) -> None:
        """Read no further request, and discard later bytes."""

    def on_response_complete(self) -> None: ...

    def close_after_answer(self) -> None: ...

    def refuse(self, error: GatewayError) -> None:
        """Answer an incomplete request with an error, and close the connection."""

    def is_answering(self) -> bool: ...

    def sends_slowly(self, now: float) -> bool: ...

    def sends_answer(self) -> bool: ...

    def recheck_pipelined(self, now: float) -> None: ...

    def check_body_rate(self, now: float) -> None: ...

    def check_closing(self, now: float) -> None: ...
