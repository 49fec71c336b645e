"""Our listener's connection: uvicorn's HTTP protocol, which takes the inference POSTs itself.

Everything else goes through uvicorn to the ASGI app as usual. For the hot paths the ASGI messages, the scope and the
task that would watch `receive` cost more than all that the gateway does with a request, so the connection hands its
bytes straight to a `DirectExchange` (direct.py).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.direct import CONTINUE, DirectExchange
from gateway.exchange import CONNECTION, declares_more, too_large
from gateway.routing.request import Endpoint
from gateway.unread import Unread

if TYPE_CHECKING:
    from gateway.app import App


class Connection(HttpToolsProtocol):
    """One client connection. `on_leave` is called once when the client closes it, or its sending half."""

    on_leave: Callable[[], object] | None = None
    gone = False
    _resuming = False  # the parser is fed a head of ours, after which it reads the body
    unread: Unread
    hot_app: App  # set by the class that `for_app` makes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        super().connection_made(transport)
        self.unread = Unread(transport, self._answers_inference)

    def _answers_inference(self) -> bool:
        return isinstance(self.cycle, DirectExchange) and not self.cycle.response_complete

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread.resumed()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._declined(data[upgrade.args[0] :])
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def _declined(self, rest: bytes) -> bytes:
        """What to parse next when an upgrade was offered (the JDK's client offers h2c with every first request). The
        parser takes the end of such a head for the end of the request; the body is read behind a head of ours."""
        cycle = self.cycle
        if isinstance(cycle, DirectExchange) and not cycle.complete:
            self._resuming = True
            return b"POST / HTTP/1.1\r\n%b\r\n\r\n%b" % (cycle.framing, rest)
        return rest

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        if self._resuming:
            self._resuming = False
            return
        if self.parser.get_method() == b"POST":
            endpoint = self.hot_app.endpoint_of(self.url)
            if endpoint is not None:
                self._take(endpoint)
                return
        self._pass_on()

    def _pass_on(self) -> None:
        """Not ours: uvicorn's way, with the scope that `on_message_begin` did not make."""
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # uvicorn's TypedDict lacks our extension
        scope["extensions"] = {CONNECTION: self}
        super().on_headers_complete()

    def _take(self, endpoint: Endpoint) -> None:
        before = self.cycle
        exchange = DirectExchange(self, self.hot_app.gateway, endpoint)
        self.cycle = exchange  # type: ignore[assignment]  # what uvicorn's protocol asks of a cycle, it has
        if before is not None and not before.response_complete:
            # Pipelined: uvicorn starts it after the answer before it.
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
            exchange.queued = True
        length = exchange.headers.get(b"content-length", b"")
        if declares_more(length, self.hot_app.gateway.snapshot.server.max_body):
            exchange.refuse(too_large(self.hot_app.gateway.snapshot.server.max_body))
        elif exchange.is_welcome() and self.expect_100_continue:
            exchange.expects_continue = True
            if not exchange.queued:
                self.transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        if isinstance(self.cycle, DirectExchange):
            self.cycle.add_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if not isinstance(cycle, DirectExchange):
            super().on_message_complete()
        elif not cycle.complete and not (self.parser.should_upgrade() and cycle.framing):
            cycle.complete = True
            cycle.message_event.set()
            if not cycle.queued:
                self.start(cycle)

    def start(self, exchange: DirectExchange) -> None:
        """Run the relay in a task of its own. (As uvicorn starts one; but it would not tell which.)"""
        task = exchange.own_task = self.loop.create_task(exchange.run_asgi(self.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.unread.resumed()
        self.gone = True
        if isinstance(self.cycle, DirectExchange) and not self.cycle.complete:
            self.cycle.abandoned()
        callback, self.on_leave = self.on_leave, None
        if callback is not None:
            callback()


def for_app(app: App) -> type[Connection]:
    """A connection class whose connections serve `app`: uvicorn takes a class, not a factory."""
    return type("AppConnection", (Connection,), {"hot_app": app})
