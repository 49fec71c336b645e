"""The capture of bodies: an admin turns it on for some time, and it ends by itself, or when its bytes are used up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.accounting.record import RequestLine
from gateway.apps.requests.captured_exchange import CapturedExchange
from gateway.domain.request import Endpoint
from gateway.errors import GatewayError
from gateway.proxy.exchange import Exchange
from gateway.runtime.gateway import Gateway

LONGEST = 24 * 3600.0  # seconds
BODY_MOST = 4 * 1024 * 1024  # bytes of one request or answer; what is longer is cut
TOTAL_MOST = 64 * 1024 * 1024  # bytes of one capture


@dataclass(frozen=True, slots=True)
class CapturedRequest:
    """A request and its answer as the client sent and got them. `whole`: nothing of the request was cut."""

    id: str
    at: float
    client: str
    endpoint: str
    local_only: bool
    whole: bool
    request: bytes
    answer: bytes


class Capture:
    """Of one gateway; off until `begin`. `keep` gets each captured request when it has ended."""

    def __init__(self, gateway: Gateway, keep: Callable[[CapturedRequest], object]) -> None:
        self._gateway = gateway
        self._keep = keep
        self._client: str | None = None  # None: of all clients
        self._until = 0.0  # Unix seconds; 0 = it is off
        self._left = 0  # bytes that may still be captured
        self._captured = 0  # requests
        self._under_way: dict[str, CapturedExchange] = {}  # by the id of their answer
        self._end: asyncio.TimerHandle | None = None

    def begin(self, seconds: float, client: str | None) -> None:
        self.end()
        self._client, self._until = client, time.time() + seconds
        self._left, self._captured = TOTAL_MOST, 0
        self._end = asyncio.get_running_loop().call_later(seconds, self.end)
        self._gateway.apps.tap = self._tapped
        self._gateway.services.line_observers.append(self._ended)

    def end(self) -> None:
        """Nothing more is captured, not the rest of what runs either."""
        if self._end is None:
            return
        self._end.cancel()
        self._end, self._until = None, 0.0
        self._gateway.apps.tap = None
        self._gateway.services.line_observers.remove(self._ended)
        for exchange in self._under_way.values():
            exchange.give_up()
        self._under_way.clear()

    def describe(self) -> dict[str, Any] | None:
        """None while it is off."""
        if self._end is None:
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
        return CapturedExchange(exchange, endpoint, self.take, self._under_way.__setitem__)

    def take(self, data: bytes, held: int) -> bytes:
        """As much of the data as may still be captured, of a body of which `held` bytes are."""
        taken = data[: max(0, min(BODY_MOST - held, self._left))]
        self._left -= len(taken)
        return taken

    def _ended(self, line: RequestLine) -> None:
        exchange = self._under_way.pop(line.id, None)
        if exchange is None:
            return
        self._captured += 1
        request, answer = bytes(exchange.request), bytes(exchange.answer)
        more = line.local_only, exchange.whole, request, answer
        self._keep(CapturedRequest(line.id, line.at, line.client, exchange.endpoint.name, *more))
        if self._left <= 0:
            self.end()
