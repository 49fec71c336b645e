"""The connection as the listener and the exchanges on it see it; `connection.py` implements it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.errors import GatewayError
from gateway.http.flow_control import Flow


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
    flow: Flow
    server: tuple[str, int | None] | None
    client: tuple[str, int] | None
    address: str | None
    gone: bool
    http_1_0: bool
    keep_alive: bool

    @property
    def request_whole(self) -> bool:
        """The request was read to its end."""
        ...

    def default_lines(self) -> bytes:
        """The header fields of every answer, each with its line end."""
        ...

    def on_leave(self, callback: Callable[[], object] | None) -> None:
        """Call `callback` once when the client leaves; None = no longer."""
        ...

    def start(self, exchange: Answering) -> None:
        """Run the exchange; the request's body is complete, or was refused."""
        ...

    def ended(self, exchange: Answering) -> None:
        """The exchange has run."""
        ...

    def discard_input(self) -> None:
        """Read no further request, and discard later bytes."""
        ...

    def on_response_complete(self) -> None: ...

    def close_after_answer(self) -> None: ...

    def refuse(self, error: GatewayError) -> None:
        """Answer an incomplete request with an error, and close the connection."""
        ...

    def is_answering(self) -> bool: ...

    def sends_slowly(self, now: float) -> bool: ...

    def sends_answer(self) -> bool: ...

    def recheck_pipelined(self, now: float) -> None: ...

    def check_body_rate(self, now: float) -> None: ...

    def check_closing(self, now: float) -> None: ...
