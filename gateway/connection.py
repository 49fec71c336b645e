"""Our listener's connection: HTTP/1.1 read by ourselves, one request at a time (request_head.py, chunked.py).

The inference POSTs go straight to a `DirectExchange` (direct.py), because ASGI messages, the scope and the task that
would watch `receive` cost more than all that the gateway does with a request. Everything else goes to the ASGI app in
uvicorn's way. The next request is looked at when the one before is read to its end and answered; an answer that comes
before the end of its request is the connection's last.
"""

from __future__ import annotations

import asyncio
import socket
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from gateway.asgi_cycle import AsgiCycle
from gateway.chunked import ChunkedBody
from gateway.direct import CONTINUE, DirectExchange
from gateway.errors import GatewayError
from gateway.exchange import CONNECTION, too_large
from gateway.listener import Limits, Listener, address_of
from gateway.request_head import END, MAX_BYTES, Head, check_lines, parse_head, parse_request_line
from gateway.request_head import too_large as head_too_large
from gateway.routing.request import Endpoint

if TYPE_CHECKING:
    from gateway.app import App

# What the next byte belongs to: a head, a body, a request after the one that is being answered; none is looked at.
_HEAD, _BODY, _AHEAD, _NOTHING = range(4)
_APPS_OWN_LIMIT = 256 * 1024  # bytes beyond `max_body` in which the app itself may notice


class _Flow(FlowControl):
    """uvicorn's; it resumes reading whenever the app asks for more of a body."""

    full = False  # what came ahead is enough: not to be resumed by the app

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class Connection(asyncio.Protocol):
    """One client connection. `on_leave` is called once when the client closes it, or its sending half."""

    hot_app: App  # set by the class that `for_app` makes
    listener: Listener

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.config = config
        self.server_state = server_state
        self.app_state = app_state
        self.loop = _loop or asyncio.get_event_loop()
        self.transport: asyncio.Transport
        self.flow: _Flow
        self.server: tuple[str, int | None] | None = None
        self.client: tuple[str, int] | None = None
        self.address: str | None = None  # by which it is counted
        self.on_leave: Callable[[], object] | None = None
        self.gone = False
        # The request that is read or answered, None before the first.
        self.cycle: DirectExchange | AsgiCycle | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.url = b""
        self.http_1_0 = False
        self.keep_alive = True
        # The reading.
        self._state = _HEAD
        self._waits: dict[Connection, float] = self.listener.heads
        self._begun: bytearray | None = None  # of a head that is not here yet
        self._checked = 0  # bytes of it that have been looked at
        self._blank = False  # an empty line stood before it
        self._left = 0  # bytes of the body to come
        self._chunked: ChunkedBody | None = None
        self._received = 0  # bytes of the body
        self._ahead = b""  # what came behind the request that is being answered
        self._ahead_at = 0
        # The pace of its client.
        self._window = (0.0, 0)  # since when, and from how many bytes on, its body's pace is measured
        self._end = (0.0, 0.0, 0)  # of one being closed: since when; last progress, and the bytes then
        self._dropped = 0

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.transport = transport
        self.flow = _Flow(transport)
        self.server = get_local_addr(transport)
        self.client = get_remote_addr(transport)
        self.server_state.connections.add(self)  # type: ignore[arg-type]  # what uvicorn asks of one, it has
        peer = self.client[0] if self.client else None
        self.address = address_of(peer, self.hot_app.gateway.snapshot.server.proxies)
        refusal = self.listener.admit(self)
        if refusal is None:
            self.listener.heads[self] = self.loop.time()
        else:
            self._answer(refusal)
            self._state = _NOTHING
            transport.write_eof()
            self.listener.turn_away(self)

    def data_received(self, data: bytes) -> None:
        if self._state == _NOTHING:
            self._dropped += len(data)
        elif self._state == _AHEAD:
            self._keep(data)
        else:
            self._read(data, 0)

    def eof_received(self) -> None:
        """The client has closed its sending half: it has left. (The transport is closed.)"""

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.forget(self)
        self.server_state.connections.discard(self)
        cycle, self.gone = self.cycle, True
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
        if isinstance(cycle, AsgiCycle):
            cycle.message_event.set()
        elif cycle is not None and not cycle.complete:
            cycle.abandoned()
        self.flow.resume_writing()
        self._ahead, self._begun = b"", None
        if exc is None:
            self.transport.close()
        callback, self.on_leave = self.on_leave, None
        if callback is not None:
            callback()

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self.listener.unread[self] = self.loop.time()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        self.listener.unread.pop(self, None)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self, data: bytes, at: int) -> None:
        """Take `data` apart, from `at` on: the rest of this request, and the next if this one is answered."""
        try:
            while at < len(data):
                if self._state == _BODY:
                    data, at = self._read_body(data, at)
                elif self._state == _HEAD:
                    at = self._read_head(data, at)
                else:
                    break
        except GatewayError as error:
            self.listener.count(error.code)
            self.refuse(error)
            return
        if self._state == _AHEAD:
            if at < len(data):
                self._ahead, self._ahead_at = data, at
        elif self._state == _BODY and self not in self.listener.bodies:
            self.listener.bodies[self] = now = self.loop.time()
            self._window = (now, self._received)

    def _read_head(self, data: bytes, at: int) -> int:
        """Returns where in `data` the head ended."""
        begun = self._begun
        if begun is None:
            if data.startswith(b"\r\n", at) and not self._blank:  # old clients end a body with one
                self._blank = True
                return at + 2
            end = data.find(END, at)
            if end >= 0:
                self._take_head(data[at:end])
                return end + 4
            begun = self._begun = bytearray()
            self._checked = 0
            self._wait_for_head()
        before = len(begun)
        begun += data[at : at + MAX_BYTES + len(END)]
        end = begun.find(END, max(0, before - 3))
        if end >= 0:
            self._begun = None
            self._take_head(bytes(begun[:end]))
            return at + end + 4 - before
        self._check_begun(begun)
        return len(data)

    def _wait_for_head(self) -> None:
        """A later head has the same time as the first, from its first byte on."""
        heads = self.listener.heads
        if self._waits is not heads:
            self._waits.pop(self, None)
            self._waits = heads
            heads[self] = self.loop.time()

    def _check_begun(self, begun: bytearray) -> None:
        """Nobody waits for the rest of what is wrong already."""
        if len(begun) > MAX_BYTES:
            raise head_too_large()
        end = len(begun) - 1 if begun.endswith(b"\r") else len(begun)
        check_lines(bytes(begun[self._checked : end]))
        first = begun.find(b"\r\n", 0, end)
        if first >= self._checked:
            parse_request_line(bytes(begun[:first]))
        self._checked = end

    def _take_head(self, raw: bytes) -> None:
        head = parse_head(raw)
        self._waits.pop(self, None)
        self._blank = False
        self.headers, self.url, self.http_1_0 = head.headers, head.target, head.http_1_0
        self.keep_alive = head.keep_alive and not self.listener.stopping
        self._received = 0
        if head.length is None:
            self._chunked = ChunkedBody()
        else:
            self._left = head.length
        has_body = head.length != 0
        self._state = _BODY if has_body else _AHEAD
        endpoint = self.hot_app.endpoint_of(head.target) if head.method == b"POST" else None
        if endpoint is not None:
            self._take(endpoint, head)
        else:
            self._pass_on(head)
        if not has_body:
            self._end_of_body()

    def _read_body(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Returns what is behind the body: bytes, and where in them to go on."""
        chunked = self._chunked
        if chunked is not None:
            body = chunked.feed(data[at:] if at else data)
            rest, at = chunked.rest, 0
            ended = rest is not None
            if ended:
                self._chunked = None
            data = rest or b""
        else:
            body = data if not at and len(data) <= self._left else data[at : at + self._left]
            at += len(body)
            self._left -= len(body)
            ended = not self._left
        if body:
            self._received += len(body)
            self._take_body(body)
        if ended and self._state == _BODY:
            self._state = _AHEAD
            self._end_of_body()
        return data, at

    def _keep(self, data: bytes) -> None:
        """A request behind the one that is being answered. The connection is read on, since otherwise nobody would
        notice that its client leaves; too much is not kept."""
        self._ahead = self._ahead[self._ahead_at :] + data if self._ahead else data
        self._ahead_at = 0
        self._hold_back()

    def _hold_back(self) -> None:
        """Read on only while little has come ahead."""
        if len(self._ahead) - self._ahead_at > self.listener.limits.ahead:
            self.flow.full = True
            self.flow.pause_reading()
            self.listener.crowded[self] = self.loop.time()
        elif self.flow.full:
            self.flow.full = False
            self.flow.resume_reading()

    def drop_rest(self) -> None:
        """Nothing more is read as a request; what still comes is thrown away, so that its client's leaving shows."""
        self._state = _NOTHING
        self._ahead, self._ahead_at, self._begun, self._chunked = b"", 0, None, None
        self.listener.bodies.pop(self, None)
        self.listener.crowded.pop(self, None)
        self.flow.full = False
        self.flow.resume_reading()

    # -- the request -----------------------------------------------------------------------------------------------

    @property
    def request_whole(self) -> bool:
        """The request that is answered was read to its end, and the next byte is the next one's."""
        return self._state == _AHEAD

    def _take(self, endpoint: Endpoint, head: Head) -> None:
        exchange = self.cycle = DirectExchange(self, self.hot_app.gateway, endpoint)
        limit = self.hot_app.gateway.snapshot.server.max_body
        if self._left > limit:
            exchange.refuse(too_large(limit))
        elif head.expects_continue:
            self.transport.write(CONTINUE)

    def _pass_on(self, head: Head) -> None:
        """Not an inference POST: uvicorn's way."""
        path, _, query = head.target.partition(b"?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": self.config.asgi_version, "spec_version": "2.3"},
            "http_version": "1.0" if head.http_1_0 else "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": "http",
            "root_path": "",
            "headers": self.headers,
            "state": self.app_state.copy(),
            "method": head.method.decode(),
            "path": urllib.parse.unquote(path.decode()) if b"%" in path else path.decode(),
            "raw_path": path,
            "query_string": query,
            "extensions": {CONNECTION: self},
        }
        self.cycle = AsgiCycle(self, scope, expects_continue=head.expects_continue)
        self._run(self.cycle.run_asgi(self.config.loaded_app))

    def start(self, exchange: DirectExchange) -> None:
        """Run the relay in a task of its own."""
        exchange.own_task = self._run(exchange.run())

    def _run(self, request: Any) -> asyncio.Task[None]:
        task = self.loop.create_task(request)
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)
        return task

    def _take_body(self, body: bytes) -> None:
        cycle = self.cycle
        if isinstance(cycle, DirectExchange):
            cycle.add_body(body)
            return
        assert cycle is not None
        limit = self.hot_app.gateway.snapshot.server.max_body
        if self._received > limit + _APPS_OWN_LIMIT:
            raise too_large(limit)
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def _end_of_body(self) -> None:
        self.listener.bodies.pop(self, None)
        cycle = self.cycle
        if isinstance(cycle, DirectExchange):
            cycle.complete = True
            self.start(cycle)
        elif cycle is not None:
            cycle.more_body = False
            cycle.message_event.set()

    def refuse(self, error: GatewayError) -> None:
        """Answer what has not come whole, and close the connection."""
        cycle, waiting = self.cycle, self._state == _HEAD
        self.drop_rest()
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

    def _answer(self, error: GatewayError) -> None:
        body = error.envelope()
        parts = [STATUS_LINE[error.status]]
        fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *error.headers()]
        for name, value in (*self.server_state.default_headers, *fields):
            parts += (name, b": ", value, b"\r\n")
        self.transport.write(b"".join((*parts, b"connection: close\r\n\r\n", body)))

    # -- after the answer ------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """The next request, if one is here or comes."""
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self in self.listener.closing:
            return
        if self._state != _AHEAD or self.listener.stopping:
            self.close_after_answer()
            return
        self._state = _HEAD
        self._waits = self.listener.idle
        self._waits[self] = self.loop.time()
        if self._ahead:
            data, at = self._ahead, self._ahead_at
            self._ahead, self._ahead_at = b"", 0
            self.listener.crowded.pop(self, None)
            self._read(data, at)
            self._hold_back()
        self.flow.resume_reading()

    def close_after_answer(self) -> None:
        """The answer was the last. A connection that is closed with bytes still to read is reset, and its client would
        not read the answer: what still comes is thrown away, for a while."""
        if self.transport.is_closing() or self in self.listener.closing:
            return
        now = self.loop.time()
        self._end = (now, now, self._progress())
        self.listener.closing[self] = now
        if self._state == _AHEAD and not self._ahead:
            self.transport.close()
        else:
            self.drop_rest()
            self.transport.write_eof()

    def shutdown(self) -> None:
        """The gateway stops (uvicorn calls it): no further request. What is being read or answered: `Listener.stop`."""
        if self in self.listener.idle:
            self.listener.idle.pop(self)
            self._state = _AHEAD
            self.close_after_answer()
        elif self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    # -- pace ------------------------------------------------------------------------------------------------------

    def is_answering(self) -> bool:
        """A request is under way, or an interrupted one is being told so."""
        return self.cycle is not None and not self.cycle.response_complete

    def is_watched(self) -> bool:
        """The relay has its own timer for a client that does not read."""
        return isinstance(self.cycle, DirectExchange) and not self.cycle.response_complete

    def sends_slowly(self, now: float) -> bool:
        """Its body has come at less than the rate so far."""
        since, before = self._window
        return self._received - before < self.listener.limits.body_rate * (now - since)

    def look_at_body(self, now: float) -> None:
        """End a body that comes too slowly. What we do not read does not count."""
        since, _ = self._window
        if self.flow.read_paused:
            self._window = (now, self._received)
        elif now - since >= self.listener.limits.body_window:
            if self.sends_slowly(now):
                self.listener.count("slow_body")
                self.refuse(GatewayError("request_timeout", "The request's body came too slowly."))
            else:
                self._window = (now, self._received)

    def still_sends(self) -> bool:
        """Some of its last answer was taken since this was asked last, but not all."""
        before, self._end = self._end, (0.0, 0.0, self._progress())
        return bool(self.transport.get_write_buffer_size()) and before[2] != self._end[2]

    def look_at_end(self, now: float) -> None:
        """Close for good what has had its time: its client takes nothing of the answer, or sends on and on."""
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
        """Changes when something is sent or thrown away."""
        return self._dropped - self.transport.get_write_buffer_size()


def for_app(app: App, limits: Limits | None = None) -> type[Connection]:
    """A connection class whose connections serve `app`: uvicorn takes a class, not a factory."""
    return type("AppConnection", (Connection,), {"hot_app": app, "listener": Listener(app.gateway, limits)})
