"""The two lanes from a received request to the slots of a backend.

Fast: the first choice (routing/first_choice.py) has a slot free, and the first attempt succeeds. Nothing else is made.
Slow: everything else. The plan with its reasons, the waiting set, further attempts. A request changes from the fast
lane to the slow one as soon as it needs any of that, and the plan then counts its first attempt.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.accounting.record import AttemptRecord, RequestRecord
from gateway.admission.failover import FailoverState
from gateway.admission.slot_acquirer import SlotAcquirer
from gateway.admission.slots import Lease
from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.request_timer import RequestTimer
from gateway.domain.upstream import Response
from gateway.proxy.planning import Planner, stream_reply
from gateway.proxy.reply import StreamReply
from gateway.proxy.stages import ReceivedRequest, RequestContext
from gateway.proxy.stream_relay import StreamRelay
from gateway.routing.needs import resort_of
from gateway.routing.plan import Candidate, with_forced_call
from gateway.routing.resume import Continuation


class Begun(Protocol):
    """A request that was sent on the fast lane, and goes on here (fast/). `snapshot`, `fleet`: as of when it came.
    `reply` and `relay`: of a stream whose answer has begun. `unread`: what the relay has read last and did not deal
    with."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def fleet(self) -> Mapping[str, BackendState]: ...

    @property
    def received(self) -> ReceivedRequest: ...

    @property
    def record(self) -> RequestRecord: ...

    @property
    def attempt(self) -> AttemptRecord: ...

    @property
    def timer(self) -> RequestTimer: ...

    @property
    def lease(self) -> Lease: ...

    @property
    def reply(self) -> StreamReply | None: ...

    @property
    def relay(self) -> StreamRelay | None: ...

    @property
    def unread(self) -> bytes: ...

    async def answer(self, send: Callable[[], Awaitable[Response]]) -> Response:
        """The answer, once its head has come. `send`: sends the request again. Raises as `engines.registry.send`, and
        the reason of an interruption."""
        ...

    def abort(self) -> None:
        """Close the connection of the answer, unless it was released."""
        ...

    def check_error(self) -> None:
        """Raises what our own code failed with on this answer."""
        ...


class PlannedRequest:
    """The backend that is asked first is known (the fast lane), or all candidates are (the slow lane). `failover`: the
    candidates that are left; `slots` acquires the slots of the next one. Both are made when they are needed: where the
    first attempt gets a slot at once, and succeeds, neither is."""

    __slots__ = (
        "_context",
        "_failover",
        "_planner",
        "_slots",
        "begun",
        "choice",
        "received",
        "reply",
        "tried_first",
    )

    def __init__(
        self, context: RequestContext, received: ReceivedRequest, planner: Planner, begun: Begun | None = None
    ) -> None:
        self.received = received
        self.begun = begun  # None = the request begins here, or its first attempt goes on
        # None = there is none without a plan, or it was taken
        self.choice = planner.first_choice() if begun is None else begun.lease.candidate
        self.tried_first: Candidate | None = None  # the choice, once it has its slots
        self._context = context
        self._planner = planner
        self._failover: FailoverState | None = None
        self._slots: SlotAcquirer | None = None
        # The reply to a client that streams; None = the answer is sent as a whole.
        self.reply = begun.reply if begun is not None and begun.reply else stream_reply(context, received, self.first)

    @property
    def first(self) -> BackendState | None:
        """The backend that is asked first, or that would be if it could serve."""
        if self.choice is not None:
            return self.choice.state
        plan = self.failover.plan
        first = plan.candidates or plan.skipped
        return first[0].state if first else None

    @property
    def failover(self) -> FailoverState:
        if self._failover is None:
            received = self.received
            resort = resort_of(received.alias, received.client.client) if received.request.tools else None
            self._failover = FailoverState(self._planner, resort)
            if self.tried_first is not None:
                self._failover.mark_begun(self.tried_first)
        return self._failover

    @property
    def slots(self) -> SlotAcquirer:
        if self._slots is None:
            context, received = self._context, self.received
            asked = received.request, received.alias, received.client, context.record.id
            admission, record = context.services.admission, context.record
            self._slots = SlotAcquirer(admission, self.failover, *asked, record.began, record.tried)
        return self._slots

    @property
    def alias(self) -> Alias:
        """Of the latest plan: routes.yaml may have been edited since the request came."""
        return self.received.alias if self._failover is None else self._failover.plan.alias

    @property
    def queued(self) -> float:
        """Seconds that it has waited for slots."""
        return 0.0 if self._slots is None else self._slots.queued

    def lease_at_once(self) -> Lease | None:
        """The slots of the first choice, where they are free."""
        choice, self.choice = self.choice, None
        if choice is None:
            return None
        if self.begun is not None:
            self.tried_first = choice
            return self.begun.lease
        client = self.received.client
        most = client.client.max_inflight if client.client is not None else None
        lease = self._context.services.admission.try_acquire(choice, self.received.request, client.name, most)
        if lease is not None:
            self.tried_first = choice
        return lease

    def detour(self, candidate: Candidate) -> tuple[str, str] | None:
        """As `Plan.detour`; the first choice is none."""
        return None if self._failover is None else self._failover.plan.detour(candidate)

    def is_last(self, candidate: Candidate) -> bool:
        """Is no other attempt left behind this one?"""
        again = with_forced_call(candidate, self.received.request, time.monotonic())
        return not (self.failover.remaining or again)

    def settled(self, estimate: int, tokens: int) -> None:
        """As `SlotAcquirer.settled`."""
        if self._slots is not None:
            self._slots.settled(estimate, tokens)


@dataclass(slots=True, eq=False)
class AdmittedRequest:
    """The request holds the slots of one backend, for one attempt."""

    planned: PlannedRequest
    candidate: Candidate
    alias: Alias  # of the plan that chose the candidate
    queued: float  # seconds that the request has waited for slots
    on_answer: Callable[[], None] | None  # called when the attempt has content for the client
    record: AttemptRecord
    has_spare: bool = False  # an attempt before had an empty answer, which is kept
    begun: Begun | None = None  # it was sent on the fast lane
    goes_on: Continuation | None = None  # the attempt goes on with a stream that broke at another backend

    @property
    def final(self) -> bool:
        """Is an empty answer delivered too?"""
        return self.has_spare or self.goes_on is not None or self.planned.is_last(self.candidate)
