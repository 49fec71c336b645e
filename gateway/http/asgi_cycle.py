"""One request for the ASGI app: uvicorn's cycle on the gateway's connection."""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.http.client_connection import ClientConnection
from gateway.http.request_head import Head
from gateway.proxy.exchange import CONNECTION


class _Transport:
    """The transport for uvicorn's cycle: `close` lets the client read the answer first."""

    __slots__ = ("_connection", "is_closing", "write")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        self._connection.close_after_answer()


class AsgiCycle(RequestResponseCycle):
    """The connection passes the body in through `body`, `more_body` and `message_event`."""

    def __init__(self, connection: ClientConnection, head: Head) -> None:
        logger = logging.getLogger("uvicorn.error")
        super().__init__(
            scope=_scope(connection, head),  # type: ignore[arg-type]  # uvicorn's TypedDict lacks our extension
            transport=_Transport(connection),  # type: ignore[arg-type]  # has all that the cycle uses
            flow=connection.flow,
            logger=logger,
            access_logger=logger,
            access_log=False,
            default_headers=connection.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.expects_continue,
            keep_alive=connection.keep_alive,
            on_response=connection.on_response_complete,
        )
        self._connection = connection

    async def send(self, message: Any) -> None:
        """As uvicorn's; an answer before the end of its request is the last on the connection."""
        if not self.response_started and not self._connection.request_whole:
            self.keep_alive = False
        await super().send(message)


def _scope(connection: ClientConnection, head: Head) -> dict[str, Any]:
    path, _, query = head.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": connection.config.asgi_version, "spec_version": "2.3"},
        "http_version": "1.0" if head.http_1_0 else "1.1",
        "server": connection.server,
        "client": connection.client,
        "scheme": "http" if connection.transport.get_extra_info("sslcontext") is None else "https",
        "root_path": "",
        "headers": head.headers,
        "state": connection.app_state.copy(),
        "method": head.method.decode(),
        "path": urllib.parse.unquote(path.decode()) if b"%" in path else path.decode(),
        "raw_path": path,
        "query_string": query,
        "extensions": {CONNECTION: connection},
    }
