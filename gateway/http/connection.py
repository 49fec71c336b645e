"""A client's connection: HTTP/1.1, read by the gateway itself, one request at a time (request_reader.py).

Inference POSTs go straight to a `DirectExchange` (direct.py), because ASGI messages, the scope and a task that watches
`receive` cost more than all the rest of a request. Everything else goes to the ASGI app as in uvicorn. The next request
is read when the one before was read to its end and answered; an answer that comes before the end of its request is the
last on its connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from gateway.domain.endpoints import Endpoint
from gateway.errors import GatewayError
from gateway.http.app import App
from gateway.http.asgi_cycle import AsgiCycle
from gateway.http.client_connection import Answering, BoundedFlow, ClientConnection, SlowReaderTimeout
from gateway.http.direct import CONTINUE, DirectExchange, last_answer
from gateway.http.listener import Listener, address_of
from gateway.http.request_head import Head, RepeatedHead
from gateway.http.request_reader import BODY, HEAD, NOTHING, PIPELINED, PacedReader
from gateway.proxy.exchange import too_large
from gateway.transport.collected import CollectedTransport

_APP_MARGIN = 256 * 1024  # bytes beyond `max_body` within which the app itself may refuse the body


class Connection(PacedReader, asyncio.Protocol):
    """One client connection (uvicorn's protocol class)."""

    app: App  # set on the class that `connection_class` (server.py) makes
    listener: Listener

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.server_state = server_state
        self.app_state = app_state
        self.loop = _loop or asyncio.get_event_loop()
        self.transport: asyncio.Transport
        self.flow: BoundedFlow
        self.slow_reader: SlowReaderTimeout
        self.server: tuple[str, int | None] | None = None
        self.client: tuple[str, int] | None = None
        self.address: str | None = None  # what it is counted by
        self.gone = False
        self._on_leave: Callable[[], object] | None = None
        # The request that is read or answered; None before the first.
        self.cycle: DirectExchange | AsgiCycle | None = None
        self.http_1_0 = False
        self.keep_alive = True
        # The dict of the listener that this connection is in while it waits for a head.
        self._waits: dict[ClientConnection, float] = self.listener.heads
        self._pipelined = b""  # pipelined bytes: those behind the request that is answered
        self._pipelined_at = 0
        self._crowded_at: float | None = None  # since when there are more of them than the limit
        self._defaults: list[tuple[bytes, bytes]] = []  # what `_default_lines` was made of
        self._default_lines = b""

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.transport = transport = CollectedTransport(transport, self.loop)
        self.flow = BoundedFlow(transport)
        self.slow_reader = SlowReaderTimeout(transport)
        self.server = get_local_addr(transport)
        self.client = get_remote_addr(transport)
        self.server_state.connections.add(self)  # type: ignore[arg-type]  # what uvicorn asks of one, it has
        peer = self.client[0] if self.client else None
        self.address = address_of(peer, self.app.gateway.snapshot.server.proxies)
        refusal = self.listener.admit(self)
        if refusal is None:
            self.listener.heads[self] = self.loop.time()
        else:
            self._answer(refusal)
            self.read_nothing()
            self._close_sending()
            self.listener.reject(self)

    def data_received(self, data: bytes) -> None:
        if self.state == NOTHING:
            self._dropped += len(data)
        elif self.state == PIPELINED:
            self._buffer(data)
        elif self.state != HEAD or not self._serve_at_once(data):
            self._read(data, 0)

    def _serve_at_once(self, data: bytes) -> bool:
        """Serve a request that has come whole, with the head of an earlier one. False: it is to be read."""
        whole = None if self.listener.stopping else self.whole_request(data)
        if whole is None:
            return False
        self._waits.pop(self, None)
        repeated, body = whole
        self.took_whole(body)
        self.http_1_0, self.keep_alive = False, True
        exchange = self.cycle = DirectExchange(self, self.app.gateway, repeated.endpoint, repeated.caller)
        exchange.take_whole(body)
        return True

    def eof_received(self) -> None:
        """The client has closed its sending half: it has left. (The transport is closed.)"""

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.forget(self)
        self.slow_reader.resumed()
        self.server_state.connections.discard(self)
        self.gone = True
        cycle, self.cycle = self.cycle, None
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
        if isinstance(cycle, AsgiCycle):
            cycle.message_event.set()
        elif cycle is not None and not cycle.complete:
            cycle.abandoned()
        self.flow.resume_writing()
        self._pipelined = b""
        if exc is None:
            self.transport.close()
        callback, self._on_leave = self._on_leave, None
        if callback is not None:
            callback()

    def on_leave(self, callback: Callable[[], object] | None) -> None:
        """Call `callback` once when the client closes the connection or its sending half; None = no longer."""
        if callback is not None and self.gone:
            self.loop.call_soon(callback)
        else:
            self._on_leave = callback

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self.slow_reader.paused(self._answers_inference)

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        self.slow_reader.resumed()

    def _answers_inference(self) -> bool:
        cycle = self.cycle
        return isinstance(cycle, DirectExchange) and not cycle.response_complete

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self, data: bytes, at: int) -> None:
        """Read `data` from the index `at`: the rest of this request, and the next one when this one is answered."""
        try:
            data, at = self.feed(data, at)
        except GatewayError as error:
            self.listener.count(error.code)
            self.refuse(error)
            return
        if self.state == PIPELINED:
            if at < len(data):
                self._pipelined, self._pipelined_at = data, at
        elif self.state == BODY and self not in self.listener.bodies:
            self.listener.bodies[self] = now = self.loop.time()
            self.body_began(now)

    def head_began(self) -> None:
        """The time limit of a later head begins with its first byte."""
        heads = self.listener.heads
        if self._waits is not heads:
            self._waits.pop(self, None)
            self._waits = heads
            heads[self] = self.loop.time()

    def head_received(self, head: Head) -> None:
        self._waits.pop(self, None)
        self.http_1_0 = head.http_1_0
        self.keep_alive = head.keep_alive and not self.listener.stopping
        endpoint = self.app.endpoint_of(head.target) if head.method == b"POST" else None
        if endpoint is not None:
            self._begin_direct(endpoint, head)
        else:
            self._begin_asgi(head)

    @property
    def _peer(self) -> str:
        return self.client[0] if self.client else "local"

    def known_head(self, raw: bytes) -> RepeatedHead | None:
        return self.listener.known_heads.find(self.app.gateway.snapshot, self._peer, raw)

    def _buffer(self, data: bytes) -> None:
        """Keep pipelined bytes. Reading goes on while a request is answered, because only a read shows that the client
        has left; the buffer is bounded."""
        self._pipelined = self._pipelined[self._pipelined_at :] + data if self._pipelined else data
        self._pipelined_at = 0
        self._pause_when_full()

    def _pause_when_full(self) -> None:
        """Stop reading while more pipelined bytes are buffered than the limit."""
        limits = self.listener.limits
        kept = limits.ahead_most if self in self.listener.deep else limits.ahead
        if len(self._pipelined) - self._pipelined_at > kept:
            self.flow.full = True
            self.flow.pause_reading()
            self.listener.crowded[self] = now = self.loop.time()
            if self._crowded_at is None:
                self._crowded_at = now
        elif self.flow.full:
            self.flow.full = False
            self.flow.resume_reading()

    def recheck_pipelined(self, now: float) -> None:
        """Reading has been paused for a while: resume it within the larger limit, so that leaving shows."""
        listener = self.listener
        if self._crowded_at is not None and now - self._crowded_at >= listener.limits.ahead_longest:
            self.discard_input()
            return
        if len(listener.deep) < listener.limits.ahead_deep:
            listener.deep.add(self)
        listener.crowded[self] = now
        if len(self._pipelined) - self._pipelined_at <= listener.limits.ahead_most and self in listener.deep:
            listener.crowded.pop(self)
            self._pause_when_full()

    def discard_input(self) -> None:
        """Read no further request; later bytes are discarded, and read, so that the client's leaving shows."""
        self.read_nothing()
        self._pipelined, self._pipelined_at = b"", 0
        self.listener.bodies.pop(self, None)
        self.listener.crowded.pop(self, None)
        self.listener.deep.discard(self)
        self.flow.full = False
        self.flow.resume_reading()

    # -- the request -----------------------------------------------------------------------------------------------

    def _begin_direct(self, endpoint: Endpoint, head: Head) -> None:
        caller = self.caller_of(head, self._peer, endpoint)
        exchange = self.cycle = DirectExchange(self, self.app.gateway, endpoint, caller)
        limit = self.app.gateway.snapshot.server.max_body
        if head.length is not None and head.length > limit:
            exchange.refuse(too_large(limit))
        elif exchange.authenticate():
            if head.repeated is None and self._repeated is not None:
                self.listener.known_heads.note(self.app.gateway.snapshot, self._peer, self._repeated)
            if head.expects_continue:
                self.transport.write(CONTINUE)

    def _begin_asgi(self, head: Head) -> None:
        """Anything but an inference POST, as in uvicorn."""
        self.cycle = AsgiCycle(self, head)
        task = self.loop.create_task(self.cycle.run_asgi(self.config.loaded_app))
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    def start(self, exchange: Answering) -> None:
        """Run the request in a task of its own."""
        task = exchange.own_task = self.loop.create_task(exchange.run())
        self.server_state.tasks.add(task)  # `ended` removes it: a callback of the task would cost more

    def ended(self, exchange: Answering) -> None:
        """The exchange has run."""
        if exchange.own_task is not None:
            self.server_state.tasks.discard(exchange.own_task)

    def body_received(self, body: bytes) -> None:
        cycle = self.cycle
        if isinstance(cycle, DirectExchange):
            cycle.add_body(body)
            return
        assert cycle is not None
        limit = self.app.limit_of(cycle.scope["path"])
        if self.received > limit + _APP_MARGIN:
            raise too_large(limit)
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def body_ended(self) -> None:
        self.listener.bodies.pop(self, None)
        cycle = self.cycle
        if isinstance(cycle, DirectExchange):
            cycle.complete = True
            self.start(cycle)
        elif cycle is not None:
            cycle.more_body = False
            self.flow.resume_reading()  # only a read shows that the client leaves
            cycle.message_event.set()

    def refuse(self, error: GatewayError) -> None:
        """Answer an incomplete request with an error, and close the connection."""
        cycle, waiting = self.cycle, self.state == HEAD
        self.discard_input()
        self._waits.pop(self, None)
        if waiting or cycle is None:
            self._answer(error)
            self.close_after_answer()
        elif isinstance(cycle, DirectExchange):
            if not cycle.complete:
                cycle.refuse(error)
        else:
            if not cycle.response_started:
                self._answer(error)
            cycle.disconnected = True
            cycle.message_event.set()
            self.close_after_answer()

    def default_lines(self) -> bytes:
        defaults = self.server_state.default_headers
        if defaults is not self._defaults:  # uvicorn makes them anew every second
            self._defaults = defaults
            self._default_lines = b"".join(b"%s: %s\r\n" % field for field in defaults)
        return self._default_lines

    def _answer(self, error: GatewayError) -> None:
        self.transport.write(last_answer(error, self.server_state.default_headers))

    # -- after the answer ------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Read the next request, which may be buffered already."""
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self in self.listener.closing:
            return
        if self.state != PIPELINED or self.listener.stopping:
            self.close_after_answer()
            return
        self.next_request()
        self._waits = self.listener.idle
        self._waits[self] = self.loop.time()
        if self._pipelined:
            data, at = self._pipelined, self._pipelined_at
            self._pipelined, self._pipelined_at = b"", 0
            self.listener.crowded.pop(self, None)
            self.listener.deep.discard(self)
            self._crowded_at = None
            self._read(data, at)
            self._pause_when_full()
        if self.flow.read_paused:
            self.flow.resume_reading()

    def close_after_answer(self) -> None:
        """Close after the last answer. Closing a socket with unread bytes resets it, and the client would lose the
        answer; so later bytes are discarded for a while first."""
        if self.transport.is_closing() or self in self.listener.closing:
            return
        now = self.loop.time()
        self.closing_began(now)
        self.listener.closing[self] = now
        if self.state == PIPELINED and not self._pipelined:
            self.transport.close()
        else:
            self.discard_input()
            self._close_sending()

    def _close_sending(self) -> None:
        """Close our half of the connection; abort it where the client has reset it. TLS has no halves."""
        try:
            self.transport.write_eof()
        except OSError:
            self.transport.abort()
        except NotImplementedError:
            self.transport.close()

    def is_answering(self) -> bool:
        """A request is being answered, which may be with the error of an interruption."""
        return self.cycle is not None and not self.cycle.response_complete

    def shutdown(self) -> None:
        """Of uvicorn, when the gateway stops: no further request. `Listener.stop` ends what is under way."""
        if self in self.listener.idle:
            self.listener.idle.pop(self)
            self.state = PIPELINED
            self.close_after_answer()
        elif self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
