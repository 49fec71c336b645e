"""The stages of a request: received -> planned -> admitted. Each is a complete value that the next stage takes. An
attempt writes an `AttemptRecord`, the whole request a `RequestRecord` (accounting/record.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.accounting.record import AttemptRecord, RequestRecord
from gateway.admission.access import Identity
from gateway.admission.failover import FailoverState
from gateway.admission.joins import Running
from gateway.admission.slot_acquirer import SlotAcquirer
from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.request import InferenceRequest
from gateway.domain.request_timer import RequestTimer
from gateway.proxy.exchange import Exchange
from gateway.proxy.feedback import Feedback
from gateway.proxy.reply import StreamReply
from gateway.proxy.services import Services
from gateway.routing.plan import Candidate
from gateway.routing.resume import Continuation


@dataclass(slots=True, eq=False)
class RequestContext:
    """What every stage uses. `snapshot`: the one in force when the request came, to its end."""

    services: Services
    snapshot: Snapshot
    exchange: Exchange
    timer: RequestTimer
    record: RequestRecord
    running: Running | None = None  # where repeats of the request may join it (joining.py)

    def feedback(self, request: InferenceRequest) -> Feedback:
        return Feedback(request, self.record.id, several_clients=len(self.snapshot.clients) > 1)


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """The body was read, and the client may use the alias."""

    client: Identity
    request: InferenceRequest
    alias: Alias


@dataclass(slots=True, eq=False)
class PlannedRequest:
    """The candidates are known. `failover`: those that are left; `slots` acquires the slots of the next one."""

    received: ReceivedRequest
    failover: FailoverState
    slots: SlotAcquirer
    reply: StreamReply | None  # the reply to a client that streams; None = the answer is sent as a whole


@dataclass(slots=True, eq=False)
class AdmittedRequest:
    """The request holds the slots of one backend, for one attempt."""

    planned: PlannedRequest
    candidate: Candidate
    alias: Alias  # of the plan that chose the candidate: routes.yaml may have been edited since the request came
    queued: float  # seconds that the request has waited for slots
    final: bool  # an empty answer is delivered too
    on_answer: Callable[[], None] | None  # called when the attempt has content for the client
    record: AttemptRecord
    goes_on: Continuation | None = None  # the attempt goes on with a stream that broke at another backend
