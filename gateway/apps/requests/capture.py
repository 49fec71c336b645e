"""The capture of bodies: an admin turns it on for some time, and it ends by itself, or when its bytes are used up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from gateway.accounting.record import RequestLine
from gateway.apps.requests.store import CapturedRequest
from gateway.domain.endpoints import Endpoint
from gateway.errors import GatewayError
from gateway.proxy.exchange import Exchange, Headers, nothing
from gateway.runtime.gateway import Gateway

LONGEST = 24 * 3600.0  # seconds
BODY_MOST = 4 * 1024 * 1024  # bytes of one request or answer; what is longer is cut
TOTAL_MOST = 64 * 1024 * 1024  # bytes of one capture


class Capture:
    """Of one gateway; off until `begin`. `keep` gets each captured request when it has ended."""

    def __init__(self, gateway: Gateway, keep: Callable[[CapturedRequest], object]) -> None:
        self._gateway = gateway
        self._keep = keep
        self._client: str | None = None  # None: of all clients
        self._until = 0.0  # Unix seconds; 0 = it is off
        self._left = 0  # bytes that may still be captured
        self._captured = 0  # requests
        # By client and the id of their answer: a client chooses its ids, and others may choose the same.
        self.under_way: dict[tuple[str, str], CapturedExchange] = {}
        self.timer: asyncio.TimerHandle | None = None  # ends the capture; None: it is off

    def begin(self, seconds: float, client: str | None) -> None:
        self.end()
        self._client, self._until = client, time.time() + seconds
        self._left, self._captured = TOTAL_MOST, 0
        self.timer = asyncio.get_running_loop().call_later(seconds, self.end)
        self._gateway.apps.tap = self._tapped
        self._gateway.services.line_observers.append(self._ended)

    def end(self) -> None:
        """Nothing more is captured, not the rest of what runs either."""
        if self.timer is None:
            return
        self.timer.cancel()
        self.timer, self._until = None, 0.0
        self._gateway.apps.tap = None
        self._gateway.services.line_observers.remove(self._ended)
        self.under_way.clear()

    def describe(self) -> dict[str, Any] | None:
        """None while it is off."""
        if self.timer is None:
            return None
        used = TOTAL_MOST - self._left
        return {"until": round(self._until), "client": self._client, "requests": self._captured, "bytes": used}

    def _tapped(self, endpoint: Endpoint, exchange: Exchange) -> Exchange:
        try:
            client = exchange.caller.identify(self._gateway.snapshot)
        except GatewayError:
            return exchange  # it is refused
        if self._client not in (None, client.label):
            return exchange
        privacy = exchange.caller.privacy(client)
        return cast(Exchange, CapturedExchange(exchange, endpoint, self, client.label, local_only=privacy.local_only))

    def begun(self, exchange: CapturedExchange, id: str) -> None:
        """Its answer begins. Of two of one client's with one id, the first is captured, as local: which of both a line
        is about cannot be seen."""
        first = self.under_way.setdefault((exchange.client, id), exchange)
        first.local_only = first.local_only or first is not exchange

    def take(self, data: bytes, body: bytearray) -> None:
        """Add as much of the data to the body as may still be captured."""
        taken = data[: max(0, min(BODY_MOST - len(body), self._left))]
        self._left -= len(taken)
        body += taken

    def _ended(self, line: RequestLine) -> None:
        exchange = self.under_way.pop((line.client, line.id), None)
        if exchange is None:
            return
        self._captured += 1
        request, answer = bytes(exchange.request), bytes(exchange.answer)
        more = line.local_only or exchange.local_only, exchange.whole, request, answer
        self._keep(CapturedRequest(line.id, line.at, line.client, exchange.endpoint.name, *more))
        if self._left <= 0:
            self.end()


class CapturedExchange:
    """An `Exchange` (proxy/exchange.py) around another, of which the bodies are captured on their way; all else is the
    other's. `client`: its label. `whole`: all of the request was captured."""

    def __init__(self, inner: Exchange, endpoint: Endpoint, capture: Capture, client: str, *, local_only: bool) -> None:
        self._inner, self._capture, self._timer = inner, capture, capture.timer
        self.endpoint, self.client, self.local_only = endpoint, client, local_only
        self.request, self.answer = bytearray(), bytearray()
        self.whole = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _take(self, data: bytes, body: bytearray) -> None:
        """Unless the capture has ended, or another one has begun."""
        if self._capture.timer is self._timer:
            self._capture.take(data, body)

    async def read_body(self, limit: int) -> bytes:
        body = await self._inner.read_body(limit)
        self._take(body, self.request)
        self.whole = len(self.request) == len(body)
        return body

    async def start(self, status: int, headers: Headers) -> None:
        headers = list(headers)
        id = dict(headers).get(b"x-request-id")
        if id is not None and self._capture.timer is self._timer:
            self._capture.begun(self, id.decode("latin-1"))
        await self._inner.start(status, headers)

    async def write(self, data: bytes) -> None:
        self._take(data, self.answer)
        await self._inner.write(data)

    def put(self, data: bytes) -> None:
        self._take(data, self.answer)
        self._inner.put(data)

    async def finish(self, data: bytes = b"", progress: Callable[[], object] = nothing) -> None:
        self._take(data, self.answer)
        await self._inner.finish(data, progress)
