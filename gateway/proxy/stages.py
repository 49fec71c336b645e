"""The stages of a request: received -> planned -> admitted (lanes.py). Each is a complete value that the next stage
takes. An attempt writes an `AttemptRecord`, the whole request a `RequestRecord` (accounting/record.py)."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.accounting.record import RequestRecord
from gateway.admission.access import Identity
from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.request import InferenceRequest
from gateway.domain.request_timer import RequestTimer
from gateway.engines.outgoing import JSON, outgoing_headers
from gateway.proxy.exchange import Exchange
from gateway.proxy.feedback import Feedback
from gateway.proxy.services import Services


@dataclass(slots=True, eq=False)
class RequestContext:
    """What every stage uses. `snapshot`: the one in force when the request came, to its end."""

    services: Services
    snapshot: Snapshot
    exchange: Exchange
    timer: RequestTimer
    record: RequestRecord

    def headers_sent(self, request_id: str) -> list[tuple[str, str]]:
        """The headers of an attempt. A trace changes them with every attempt; without one they are the same for all
        requests with this head."""
        if self.services.tracer is not None:
            return outgoing_headers(self.exchange.headers, request_id)
        return [JSON, ("x-request-id", request_id), *self.exchange.caller.passed_on]

    def feedback(self, request: InferenceRequest) -> Feedback:
        return Feedback(request, self.record.id, several_clients=len(self.snapshot.clients) > 1)


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """The body was read, and the client may use the alias."""

    client: Identity
    request: InferenceRequest
    alias: Alias
