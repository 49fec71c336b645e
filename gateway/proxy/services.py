"""The objects that the request path uses. The runtime creates and changes them; a request only reads them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gateway.accounting.accounts import Accounts
from gateway.accounting.record import AttemptRecord, RequestLine, RequestRecord, Settler, request_line
from gateway.admission.slots import Admission
from gateway.config.snapshot import Snapshot
from gateway.domain.fleet import Fleet
from gateway.domain.request import InferenceRequest
from gateway.domain.request_timer import Pulse
from gateway.health.prober import Prober
from gateway.metrics.registry import Metrics
from gateway.proxy.active import ActiveRequests
from gateway.proxy.exchange import Exchange
from gateway.proxy.inner_exchange import InnerExchange, OnBehalf
from gateway.proxy.sent_ids import SentIds
from gateway.routing.culprits import Culprits
from gateway.routing.placements import Placements
from gateway.shortage import Kind

DecidesAhead = Literal["repeated", "first", "never"]
"""Which requests are decided ahead: those whose head has come before; already the first with its head, so that a test
with one request runs on what was decided; none (`GATEWAY_DECIDE_ALWAYS`)."""


class RequestTrace(Protocol):
    """The trace of one request. `headers`: those that are sent with its attempts."""

    headers: dict[bytes, bytes]

    async def follow(self, attempt: AttemptRecord, run: Callable[[], Awaitable[None]]) -> None:
        """Run the attempt as a span of its own."""

    def end(self, record: RequestRecord) -> None:
        """The request has ended: its spans may be exported."""


class Tracer(Protocol):
    def begin(self, headers: dict[bytes, bytes]) -> RequestTrace | None:
        """The trace of a request with these headers, which are sent with its attempts; None = it is not traced."""


RunInner = Callable[[InnerExchange, OnBehalf], Awaitable[None]]


class Describer(Protocol):
    """Puts descriptions in the place of pictures (`aliases.*.describe_images`)."""

    async def described(self, context: Any, received: Any, run: RunInner) -> InferenceRequest:
        """The request of `received` (a ReceivedRequest in its RequestContext) as it is to be planned."""
        ...


class TranslatingExchange(Exchange, Protocol):
    """An exchange whose client speaks another API."""

    async def translate(self, body: bytes) -> bytes:
        """The chat request, from the client's body."""
        ...


@dataclass(slots=True, eq=False)
class Services:
    """One per gateway. `observers` are called once with each finished record, after it was counted, and
    `line_observers` with its line; they must not block."""

    snapshot: Snapshot  # the one in force; a request keeps the one that it began with
    fleet: Fleet
    metrics: Metrics
    accounts: Accounts
    settler: Settler
    admission: Admission
    prober: Prober
    culprits: Culprits
    pulse: Pulse
    active: ActiveRequests
    sent_ids: SentIds
    on_short: Callable[[Kind], None]  # called when the gateway itself lacks something
    placements: Placements = field(default_factory=Placements)
    describer: Describer | None = None  # None = the app is not there
    tool_dialect: Callable[[Exchange], TranslatingExchange] | None = None  # of tools that no chat has; None = no app
    ask_all: Callable[..., Any] | None = None  # `AskAll` of the app of this name, where it is there
    tracer: Tracer | None = None  # None = nothing is traced
    decides_ahead: DecidesAhead = "repeated"
    observers: list[Callable[[RequestRecord], object]] = field(default_factory=list)
    line_observers: list[Callable[[RequestLine], object]] = field(default_factory=list)
    _turns: dict[str, int] = field(default_factory=dict)

    def settle(self, record: RequestRecord) -> int:
        """Count a finished request, and give it to the observers. Returns the tokens that count against limits. A
        failure here harms no answer and no connection."""
        used, failures = 0, self.metrics.failures
        try:
            used = self.settler.settle(record)
        except Exception:
            failures.note("settle", f"counting request {record.id}")
        for observer in self.observers:
            try:
                observer(record)
            except Exception:
                failures.note("settle", f"observing request {record.id}")
        if self.line_observers:
            try:
                self.tell(request_line(record, time.time()))
            except Exception:
                failures.note("settle", f"observing request {record.id}")
        return used

    def tell(self, line: RequestLine) -> None:
        """Give the line of a finished request to its observers."""
        for observer in self.line_observers:
            try:
                observer(line)
            except Exception:
                self.metrics.failures.note("settle", f"observing request {line.id}")

    def turn(self, alias: str) -> int:
        """The number of earlier requests of this alias, for round robin."""
        return self._turns.get(alias, 0)

    def next_turn(self, alias: str) -> int:
        """As `turn`, and this request is the next."""
        turn = self._turns.get(alias, 0)
        self._turns[alias] = turn + 1
        return turn
