"""What the connection of a client does for its requests on the fast lane (proxy/fast/)."""

from __future__ import annotations

from typing import Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.admission.caller import Caller
from gateway.admission.memory import Share
from gateway.domain.request import CHAT
from gateway.http.asgi_cycle import AsgiCycle
from gateway.http.client_connection import ClientConnection
from gateway.http.direct import DirectExchange
from gateway.http.flow_control import Flow
from gateway.http.request_reader import PIPELINED
from gateway.proxy.fast.request import FastRequest
from gateway.runtime.gateway import Gateway

_OK = STATUS_LINE[200]


class ServingConnection(ClientConnection, Protocol):
    """`state`: as of its `RequestReader`. `cycle`: the request that is read or answered elsewhere; None = there is
    none."""

    state: int
    cycle: DirectExchange | AsgiCycle | None


class FastService:
    """The `FastClient` of the requests of one connection. `request`: the one on the fast lane that is not answered, and
    that has no exchange."""

    __slots__ = ("_connection", "_ended", "_gateway", "flow", "loop", "request")

    def __init__(self, connection: ServingConnection, gateway: Gateway) -> None:
        self._connection = connection
        self._gateway = gateway
        self.loop = connection.loop
        self.flow: Flow  # of the connection, once that is made
        self.request: FastRequest | None = None
        self._ended = False  # its end was sent

    def serve(self, caller: Caller, body: bytes) -> bool:
        """Serve the request that has come. False = nothing was done."""
        connection = self._connection
        request = self._gateway.fast_lane.serve(self, caller, body)
        if request is None:
            return False
        connection.cycle, self.request = None, request
        self._ended = False
        return True

    def client_left(self) -> None:
        if self.request is not None:
            self.request.left()

    def is_ready(self) -> bool:
        """May a whole answer be written, after which the connection stays open?"""
        connection = self._connection
        return connection.state == PIPELINED and not connection.flow.write_paused

    def answer_whole(self, lines: bytes, body: bytes) -> None:
        """Write a whole answer. `lines`: the fields of its head, each with its end."""
        self._end()
        connection = self._connection
        connection.transport.write(b"".join((_OK, connection.default_lines(), lines, b"\r\n", body)))

    def _end(self) -> None:
        """The last bytes of the answer are being written."""
        connection = self._connection
        if (exchange := connection.cycle) is not None:
            exchange.response_complete = True
            connection.on_leave(None)
        self.request, self._ended = None, True

    def completed(self) -> None:
        connection = self._connection
        if isinstance(exchange := connection.cycle, DirectExchange):
            exchange.completed()
        else:
            connection.on_response_complete()

    def exchange_of(self, caller: Caller, share: Share, *, keep_alive: bool) -> DirectExchange:
        """The exchange of this request, from now on."""
        connection = self._connection
        self.request = None
        exchange = DirectExchange(connection, self._gateway, CHAT, caller, share)
        exchange.complete, exchange.keep_alive = True, keep_alive
        if connection.gone:
            exchange.disconnected = True
        else:
            connection.cycle = exchange
        exchange.response_complete = self._ended
        return exchange
