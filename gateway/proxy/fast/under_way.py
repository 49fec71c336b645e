"""What a request on the fast lane needs as soon as it lasts: a timer, and an exchange that can be written to part by
part. What only the slow lane needs is made when it asks for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Protocol

from gateway.accounting.limits import Charge
from gateway.accounting.record import AttemptRecord, RequestRecord
from gateway.admission.backend_queue import SlotGrant
from gateway.admission.caller import Caller
from gateway.admission.slots import Lease
from gateway.config.snapshot import Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.request import CHAT, InferenceRequest
from gateway.domain.request_timer import RequestTimer
from gateway.domain.upstream import OwnFailure, Response, StaleConnection
from gateway.errors import fresh
from gateway.proxy.exchange import Exchange
from gateway.proxy.fast.decisions import Decision, Member
from gateway.proxy.handler import RequestHandler
from gateway.proxy.reply import StreamReply
from gateway.proxy.services import Services
from gateway.proxy.stages import ReceivedRequest
from gateway.proxy.stream_relay import StreamRelay
from gateway.transport.h1_response import H1Response


class FastExchange(Exchange, Protocol):
    """An exchange that can be answered without waiting while it is `ready`. `keep_alive`: its connection stays open
    behind the answer."""

    keep_alive: bool

    def begin(self, status: int, lines: bytes, *, chunked: bool) -> None:
        """As `start`. `lines`: the header fields, each with its line end."""
        ...

    def write_last(self, data: bytes) -> None:
        """Write the last part, of `PIECE` bytes at most. `completed` follows."""
        ...

    def completed(self) -> None:
        """The answer is written: the next request may be read."""
        ...

    def run_by(self, handler: RequestHandler) -> None:
        """This handler goes on with the request, in a task of its own."""
        ...


class Sent(Protocol):
    """A request that was sent (request.py)."""

    services: Services
    decision: Decision
    member: Member
    caller: Caller
    charge: Charge | None
    id: str
    began: float  # in the loop's seconds
    since: float  # monotonic seconds: since when it holds its slot
    tokens: int  # of its prompt, as they are counted for the backend

    def forget_under_way(self) -> None: ...


class UnderWay:
    """A `Begun` (lanes.py), once the request is handed over. `first_token`: when the first content was sent to the
    client, in the loop's seconds; 0 = none was. `response`: the answer that has come, or will; set when it is handed
    over. `reason`: of an interruption. `error`: what our own code failed with on this answer."""

    def __init__(self, sent: Sent, request: InferenceRequest, exchange: FastExchange, timer: RequestTimer) -> None:
        self.request = request
        self.exchange = exchange
        self.timer = timer
        self.reply: StreamReply | None = None
        self.relay: StreamRelay | None = None
        self.unread = b""
        self.first_token = 0.0
        self.response: H1Response
        self.reason: BaseException | None = None
        self.error: Exception | None = None
        self._sent = sent

    @property
    def snapshot(self) -> Snapshot:
        return self._sent.decision.snapshot

    @property
    def fleet(self) -> Mapping[str, BackendState]:
        return self._sent.decision.fleet

    @cached_property
    def received(self) -> ReceivedRequest:
        decision = self._sent.decision
        return ReceivedRequest(decision.client, self.request, decision.alias)

    @cached_property
    def lease(self) -> Lease:
        sent = self._sent
        state = sent.member.state
        state.prompt_tokens -= sent.tokens  # the lease counts them
        held = SlotGrant(state, 1, sent.since, sent.decision.client.name)
        return Lease(sent.services.admission.scheduler, sent.member.candidate, held, self.request, was_ready=True)

    @cached_property
    def record(self) -> RequestRecord:
        return new_record(self._sent, self.request, self.first_token)

    @property
    def attempt(self) -> AttemptRecord:
        return self.record.attempts[0]

    async def answer(self, send: Callable[[], Awaitable[Response]]) -> Response:
        """As `Begun`."""
        response = self.response
        if self.relay is not None:
            self.attempt.track = self.relay.track
        self._sent.forget_under_way()  # which refers to this
        if self.reason is not None:
            raise fresh(self.reason)
        try:
            await response.head()
        except StaleConnection:
            return await send()
        except OwnFailure as failure:
            self._sent.services.on_short(failure.shortage)
            if failure.unsent:
                return await send()
            raise
        return response

    def abort(self) -> None:
        """As `Begun`."""
        self.response.abort()

    def check_error(self) -> None:
        """As `Begun`."""
        if self.error is not None:
            raise self.error  # with its traceback: it is a defect


def new_record(sent: Sent, request: InferenceRequest, first_token: float) -> RequestRecord:
    """The record of a request whose only attempt runs. `first_token`: as of `UnderWay`."""
    client, alias = sent.decision.client, sent.decision.alias.name
    record = RequestRecord(sent.id, CHAT, sent.began, client.label, client.client, request, alias)
    attempt = record.trying = AttemptRecord(sent.member.state, request, 1, None, first_token=first_token)
    record.attempts.append(attempt)
    record.charge = sent.charge
    return record
