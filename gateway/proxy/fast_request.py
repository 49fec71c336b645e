"""The fast lane of a whole request. It is decided as an earlier one was, and served in the callbacks of its two
connections, without a task.

`FastLane.serve` sends it, if a decision holds for it, a slot is free and a connection is open. `FastRequest` is the
request under way: it passes on an answer in which there is nothing to do. Whatever else happens is the slow lane's: the
request is handed over as it is to a `RequestHandler`, which goes on from there in a task (`Begun`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from gateway.accounting.record import AttemptRecord, RequestRecord
from gateway.admission.slots import Lease
from gateway.domain.health_state import State
from gateway.domain.request import CHAT, is_limit, may_have_media, read_fields, value_of
from gateway.domain.request_timer import RequestTimer
from gateway.domain.upstream import OwnFailure, Response, SilenceFailure, StaleConnection
from gateway.errors import GatewayError
from gateway.inspection import rewrite
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import WholeAnswer, read_whole
from gateway.large_bodies import LARGE, SEARCHED
from gateway.proxy.attempt import LAST_MOST, TAIL, expect_first, is_stream
from gateway.proxy.decisions import Decision, Decisions, Member, tokens_needed
from gateway.proxy.exchange import PIECE, ClientGone, Exchange
from gateway.proxy.feedback import Feedback, count_found
from gateway.proxy.handler import RequestHandler
from gateway.proxy.planning import stream_reply
from gateway.proxy.reply import HEARTBEAT, StreamReply, request_id
from gateway.proxy.services import Services
from gateway.proxy.stages import ReceivedRequest, RequestContext
from gateway.proxy.stream_relay import StreamRelay
from gateway.routing.balance import affinity_key, order
from gateway.routing.inspection_policy import policy_for
from gateway.transport.h1_connection import Connection
from gateway.transport.h1_response import H1Response

_encode = msgspec.json.Encoder().encode


class FastExchange(Exchange, Protocol):
    """An exchange that can be answered without waiting while it is `ready`."""

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


class FastLane:
    """The fast lane of one gateway."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def serve(self, exchange: FastExchange, body: bytes) -> bool:
        """Send this chat to a backend, if it is a usual one. False = nothing was done."""
        services, caller = self._services, exchange.caller
        admission = services.admission
        if services.culprits or services.tracer is not None or admission.scheduler.sharing is not None:
            return False
        decisions: Decisions | None = caller.decisions
        if decisions is None:  # the first request with this head
            caller.decisions = Decisions()
            return False
        if len(body) > SEARCHED or not exchange.ready:
            return False
        try:
            fields = read_fields(body)
        except GatewayError:
            return False
        shape = decisions.shape(tuple(fields))
        decision = decisions.decision(services, caller, body, shape, fields)
        if decision is None:
            return False
        limits: dict[str, int] = {}
        most = decision.limit
        for name in shape.limits:
            limit = value_of(fields[name])
            if is_limit(limit):
                limits[name] = limit
                most = max(most, limit)
            elif limit is not None:
                return False
        prompt_bytes = 0
        for name in CHAT.prompt:
            if name in fields:
                prompt_bytes += len(memoryview(fields[name]))
        needed, now = tokens_needed(prompt_bytes, most), time.monotonic()
        for member in decision.members:
            state = member.state
            if state.health.state is not State.READY or state.cooldown_until > now or needed > member.window:
                return False
        if decision.searched and may_have_media(fields["messages"]):
            return False
        client, alias = decision.client, decision.alias
        request = decision.like.alike(fields, limits, prompt_bytes, client.name)
        member = decision.members[0]
        if len(decision.members) > 1:
            ordered = order(
                decision.states,
                alias.balance,
                services.turn(alias.name),
                lambda: affinity_key(request, caller.session, client.name, alias.name),
                now,
            )
            member = decision.by_state[ordered[0].name]
        connection = member.client.take_idle()
        if connection is None:
            return False
        of_client = client.client
        inflight_most = of_client.max_inflight if of_client is not None else None
        held = admission.scheduler.try_acquire(member.state, 1, now, client.name, inflight_most)
        if held is None:
            member.client.put_idle(connection)
            return False
        try:
            services.accounts.limits.check(of_client, request, now)
        except GatewayError:
            admission.scheduler.release(held, now, served=False)
            member.client.put_idle(connection)
            return False
        admission.seconds.observe(0.0)
        services.next_turn(alias.name)
        received = ReceivedRequest(client, request, alias)
        lease = Lease(admission.scheduler, member.candidate, held, request)
        FastRequest(services, exchange, received, decision, member, lease).send(connection)
        return True


class FastRequest:
    """One request under way, from the moment at which it is sent. Where it is handed over it is a `Begun` (lanes.py)."""

    __slots__ = (
        "_decision",
        "_draining",
        "_error",
        "_handed_over",
        "_member",
        "_reason",
        "_response",
        "_services",
        "attempt",
        "exchange",
        "lease",
        "received",
        "record",
        "relay",
        "reply",
        "timer",
        "unread",
    )

    def __init__(
        self,
        services: Services,
        exchange: FastExchange,
        received: ReceivedRequest,
        decision: Decision,
        member: Member,
        lease: Lease,
    ) -> None:
        self.exchange = exchange
        self.received = received
        self.lease = lease
        self.timer = timer = RequestTimer(services.pulse, None, self._beat, self._interrupted)
        client, request = received.client, received.request
        self.record = record = RequestRecord(
            request_id(None), CHAT, timer.heard, client.label, client.client, request, received.alias.name
        )
        self.attempt = record.trying = AttemptRecord(member.state, request, 1, None)
        record.attempts.append(self.attempt)
        self.reply: StreamReply | None = None
        self.relay: StreamRelay | None = None
        self.unread = b""
        self._services = services
        self._decision = decision
        self._member = member
        self._response: H1Response
        self._draining = False  # the client has its whole answer, the backend has not ended its own
        self._handed_over = False
        self._reason: BaseException | None = None  # of an interruption
        self._error: Exception | None = None  # of our own code, on this answer

    def send(self, connection: Connection) -> None:
        member, record, request = self._member, self.record, self.received.request
        fields = {**request.fields, **member.changes}
        for name in member.dropped:
            del fields[name]
        body = _encode(fields)
        head = b"%s%s%s%d\r\n\r\n" % (member.before, record.id.encode(), member.after, len(body))
        timer = self.timer
        expect_first(timer, member.state, request)
        if request.stream:
            timer.beat_at = record.began + member.state.backend.timeouts.hold
        self._services.active.add(self)
        self.exchange.on_leave(self._left)
        self._response = response = connection.begin(head, body, reused=True)
        response.watcher = self._arrived

    # -- the answer -----------------------------------------------------------------------------------------------

    def _arrived(self) -> None:
        """A part of the answer has arrived, or the connection has failed."""
        try:
            response = self._response
            if self._draining:
                if response.complete or response.failure is not None:
                    self._end()
            elif response.status == 200 and response.failure is None:
                if self.received.request.stream:
                    self._pass_on(response)
                elif response.complete:
                    self._deliver(response)
                elif response.size > LARGE:
                    self.hand_over()
            elif response.status or response.failure is not None:
                self.hand_over()
        except Exception as error:
            if self._draining or self._handed_over:
                raise
            self._error = error
            self.hand_over()

    def _deliver(self, response: H1Response) -> None:
        """Send a whole answer in which there is nothing to do."""
        if not response.is_plain:
            self.hand_over()
            return
        body = response.take()
        answer = self._answer(body)
        if answer is None:
            response.give_back(body)
            self.hand_over()
            return
        self._record_answer(answer)
        self.attempt.first_token = self.timer.now()
        body = rewrite.whole(answer.body, answer.model, self.received.request.model)
        exchange, record = self.exchange, self.record
        exchange.stop_watching()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\n%s" % (
            len(body),
            record.id.encode(),
            self._member.lines,
        )
        exchange.begin(200, head, chunked=False)
        exchange.write_last(body)
        self._end()

    def _answer(self, body: bytes) -> WholeAnswer | None:
        """The answer, if it can be sent as it is."""
        if len(body) > PIECE or len(body) > self._decision.snapshot.server.max_body or not self.exchange.ready:
            return None
        member, request = self._member, self.received.request
        try:
            self.exchange.share.add(len(body))
        except GatewayError:
            return None
        policy, thoughts = member.policy, member.thoughts
        if request.tools:
            policy, thoughts = policy_for(request, self.received.alias, member.candidate, time.monotonic())
        answer = read_whole(body, request, policy, thoughts)
        if answer.failure is None and not (answer.violations or answer.mended or answer.empty or answer.disobeyed):
            return answer
        self.exchange.share.release(len(body))
        return None

    def _pass_on(self, response: H1Response) -> None:
        """Send what has arrived of a stream, if that needs nothing else."""
        if self.relay is None:
            if not is_stream(response) or not response.is_plain:
                self.hand_over()
                return
            self._begin_relay()
        relay = self.relay
        assert relay is not None
        if (data := response.take()) and not relay.pass_on(data):
            if not self._pass_on_other(relay):
                self.unread = data
                self.hand_over()
                return
            if self._draining:
                return
        if response.complete or response.failure is not None:
            self.hand_over()

    def _begin_relay(self) -> None:
        member, request = self._member, self.received.request
        policy, thoughts = member.policy, member.thoughts
        if request.tools:
            policy, thoughts = policy_for(request, self.received.alias, member.candidate, time.monotonic())
        self.reply = reply = stream_reply(self.context(), self.received, member.state)
        assert reply is not None
        track = StreamTrack(request, reply.identity, policy, thoughts)
        gaps = self._services.metrics.inter_token.child(member.state.name)
        self.relay = StreamRelay(reply, track, member.state, self.timer, gaps, None)

    def _pass_on_other(self, relay: StreamRelay) -> bool:
        """What the relay has left: the first content, and the end of a complete stream. False = something else."""
        track, reply = relay.track, self.reply
        assert reply is not None
        if relay.unread or track.failure is not None or track.disobeyed or not self.exchange.ready:
            return False
        ends = track.complete and len(relay.out) <= LAST_MOST
        if track.done and not ends:
            return False
        if relay.out:
            if not reply.committed:
                self._begin_reply(reply)
            if track.content and not reply.content:
                reply.content = True
                self.attempt.first_token = self.timer.now()
        if ends:
            self._finish_stream(relay, track)
        elif relay.out:
            self.exchange.put(relay.out)
            relay.out = b""
            self.timer.beat_at = self.timer.heard + HEARTBEAT
        return True

    def _begin_reply(self, reply: StreamReply) -> None:
        member = self._member
        reply.committed, reply.served_by = True, member.state.name
        lines = b"%sx-request-id: %s\r\n%s" % (self._decision.stream_lines, self.record.id.encode(), member.lines)
        self.exchange.begin(200, lines, chunked=True)

    def _finish_stream(self, relay: StreamRelay, track: StreamTrack) -> None:
        track.conclude()
        feedback = Feedback(self.received.request, self.record.id, several_clients=self._several_clients)
        count_found(track, self._member.state, feedback, self._services.metrics)
        self._record_answer(track)
        exchange, timer = self.exchange, self.timer
        exchange.stop_watching()
        exchange.write_last(relay.out + b"data: [DONE]\n\n")
        self._draining = True
        if self._response.complete:
            self._end()
        else:
            timer.rest()
            timer.expect(TAIL)

    @property
    def _several_clients(self) -> bool:
        return len(self._decision.snapshot.clients) > 1

    def _record_answer(self, answer: WholeAnswer | StreamTrack) -> None:
        attempt = self.attempt
        attempt.answered, attempt.answer, attempt.usage = True, answer, answer.usage

    def _end(self) -> None:
        """The client has its whole answer: release everything, and count it."""
        services, record = self._services, self.record
        self._draining = True
        self._response.watcher = None
        self._member.state.evidence.succeeded()
        self._response.release()
        self.lease.release()
        self.timer.close()
        self.exchange.share.close()
        services.active.discard(self)
        record.seconds = self.timer.now() - record.began
        record.queued = 0.0
        record.committed = self.reply is not None
        services.settle(record)
        record.release_bytes()
        self.exchange.completed()

    # -- handed over ----------------------------------------------------------------------------------------------

    def _interrupted(self, reason: BaseException) -> None:
        """The timer's: the request was ended from outside, or something took too long."""
        if self._draining:
            self._end()
            return
        if self._reason is None or isinstance(self._reason, SilenceFailure):
            self._reason = reason
        self.hand_over()

    def _beat(self) -> None:
        """The timer's: a heartbeat is due. The slow lane sends it."""
        self.timer.beat_at = self.timer.now()
        self.hand_over()

    def _left(self) -> None:
        self._interrupted(ClientGone())

    def context(self) -> RequestContext:
        return RequestContext(self._services, self._decision.snapshot, self.exchange, self.timer, self.record)

    def hand_over(self) -> None:
        """The slow lane goes on."""
        if self._handed_over or self._draining:
            return
        self._handed_over = True
        self._response.watcher = None
        handler = RequestHandler(self._services, CHAT, self.exchange, begun=self)
        active = self._services.active
        active.discard(self)
        active.add(handler)
        self.exchange.run_by(handler)

    async def answer(self, send: Callable[[], Awaitable[Response]]) -> Response:
        """For the slow lane: the answer, once its head has come. `send`: sends the request again. Raises as
        `engines.registry.send`, and the reason of an interruption."""
        response = self._response
        if self._reason is not None:
            response.abort()
            raise self._reason
        try:
            await response.head()
        except StaleConnection:
            return await send()
        except OwnFailure as failure:
            self._services.on_short(failure.shortage)
            raise
        return response

    def check_error(self) -> None:
        """For the slow lane: raises what our own code failed with on this answer."""
        if self._error is not None:
            raise self._error
