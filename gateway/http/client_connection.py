"""What the listener and the answers on a connection use of it; `connection.py` is the one implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.errors import GatewayError
from gateway.http.flow_control import Flow


class Answering(Protocol):
    """What runs on a connection's request, in a task of its own."""

    own_task: asyncio.Task[None] | None

    async def run(self) -> None: ...


class ClientConnection(Protocol):
    """One client connection. `address` is what it is counted by; `on_leave` is called once when the client leaves."""

    config: Config
    server_state: ServerState
    app_state: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    flow: Flow
    server: tuple[str, int | None] | None
    client: tuple[str, int] | None
    address: str | None
    on_leave: Callable[[], object] | None
    gone: bool
    headers: list[tuple[bytes, bytes]]
    http_1_0: bool
    keep_alive: bool

    @property
    def request_whole(self) -> bool:
        """The request was read to its end."""
        ...

    def start(self, exchange: Answering) -> None:
        """Run what answers the request; its body is here, or was refused."""
        ...

    def drop_rest(self) -> None:
        """Throw away what is still to come."""
        ...

    def on_response_complete(self) -> None: ...

    def close_after_answer(self) -> None: ...

    def refuse(self, error: GatewayError) -> None:
        """Answer with an error what is being read, and close."""
        ...

    def is_answering(self) -> bool: ...

    def sends_slowly(self, now: float) -> bool: ...

    def still_sends(self) -> bool: ...

    def look_ahead(self, now: float) -> None: ...

    def look_at_body(self, now: float) -> None: ...

    def look_at_end(self, now: float) -> None: ...
