"""One request on the fast lane, from the moment at which it is sent: served in the callbacks of its two connections.

It passes on an answer in which there is nothing to do. Whatever else happens is the slow lane's: the request is handed
over as it is to a `RequestHandler`, which goes on from there in a task (`Begun`, lanes.py). What only such requests
need, and those that last, is made when it is needed (`UnderWay`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from msgspec import Raw

from gateway.accounting.record import AttemptRecord, RequestLine, RequestRecord
from gateway.admission.caller import Caller
from gateway.admission.memory import Memory, Share
from gateway.admission.slots import Lease
from gateway.admission.waiter import SlotGrant
from gateway.domain.request import CHAT, InferenceRequest
from gateway.domain.request_timer import RequestTimer
from gateway.domain.token_ratio import LEARN_FROM
from gateway.domain.upstream import OwnFailure, Response, SilenceFailure, StaleConnection
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import WholeAnswer, read_plain, read_whole
from gateway.large_bodies import LARGE
from gateway.proxy.attempt import LAST_MOST, TAIL, expect_first, is_stream
from gateway.proxy.exchange import PIECE, ClientGone, Exchange
from gateway.proxy.fast.decisions import Decision, Member
from gateway.proxy.feedback import Feedback, count_found
from gateway.proxy.handler import RequestHandler
from gateway.proxy.planning import stream_reply
from gateway.proxy.reply import HEARTBEAT, StreamReply, request_id
from gateway.proxy.services import Services
from gateway.proxy.stages import ReceivedRequest, RequestContext
from gateway.proxy.stream_relay import StreamRelay
from gateway.routing.inspection_policy import policy_for
from gateway.shortage import Kind
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


class FastClient(Protocol):
    """The connection of a client with a request on the fast lane."""

    loop: asyncio.AbstractEventLoop

    @property
    def ready(self) -> bool:
        """May a whole answer be written, after which the connection stays open?"""
        ...

    def answer_whole(self, lines: bytes, body: bytes) -> None:
        """Write the whole answer of the request. `lines`: of its head, each with its end."""
        ...

    def completed(self) -> None:
        """The answer is written: the next request may be read."""
        ...

    def exchange_of(self, request: FastRequest, caller: Caller, share: Share) -> FastExchange:
        """The exchange of this request, from now on."""
        ...


class UnderWay:
    """The objects of a request that lasts. Where it is handed over, this is the `Begun` (lanes.py), with the `response`
    that has come, or will."""

    __slots__ = (
        "attempt",
        "error",
        "exchange",
        "lease",
        "on_short",
        "reason",
        "received",
        "record",
        "relay",
        "reply",
        "response",
        "timer",
        "unread",
    )

    def __init__(
        self,
        on_short: Callable[[Kind], object],
        exchange: FastExchange,
        received: ReceivedRequest,
        lease: Lease,
        timer: RequestTimer,
        record: RequestRecord,
        attempt: AttemptRecord,
    ) -> None:
        self.on_short = on_short
        self.exchange = exchange
        self.received = received
        self.lease = lease
        self.timer = timer
        self.record = record
        self.attempt = attempt
        self.reply: StreamReply | None = None
        self.relay: StreamRelay | None = None
        self.unread = b""
        self.response: H1Response | None = None
        self.reason: BaseException | None = None  # of an interruption
        self.error: Exception | None = None  # of our own code, on this answer

    async def answer(self, send: Callable[[], Awaitable[Response]]) -> Response:
        """As `Begun`."""
        response = self.response
        assert response is not None
        if self.reason is not None:
            response.abort()
            raise self.reason
        try:
            await response.head()
        except StaleConnection:
            return await send()
        except OwnFailure as failure:
            self.on_short(failure.shortage)
            raise
        return response

    def check_error(self) -> None:
        """As `Begun`."""
        if self.error is not None:
            raise self.error


class FastRequest:
    """One request under way, and the taker of its backend's answer. Before it is sent, lane.py finds out what it has of
    its own: `fields`: of the body. `limits`: of the answer, where it has any (tokens). `prompt_bytes`: media included.
    `member`: the backend. `since`: when it began (monotonic seconds). `share`: its memory; None = it has `tiny` bytes,
    of which no account is kept."""

    __slots__ = (
        "_began",
        "_caller",
        "_client",
        "_connection",
        "_decision",
        "_draining",
        "_handed_over",
        "_id",
        "_memory",
        "_response",
        "_services",
        "_tokens",
        "_under_way",
        "fields",
        "keep_alive",
        "limits",
        "member",
        "prompt_bytes",
        "share",
        "since",
        "tiny",
    )

    endpoint = CHAT
    limits: dict[str, int]
    prompt_bytes: int
    member: Member

    def __init__(
        self,
        services: Services,
        memory: Memory,
        client: FastClient,
        caller: Caller,
        decision: Decision,
        fields: dict[str, Raw],
        since: float,
    ) -> None:
        self._services = services
        self._memory = memory
        self._client = client
        self._caller = caller
        self._decision = decision
        self.fields = fields
        self.since = since
        self.share: Share | None = None
        self.tiny = 0
        self._connection: Connection
        self._id: str
        self._began: float  # in the loop's seconds
        self._tokens: int  # of the prompt, estimated
        self._under_way: UnderWay | None = None
        self._response: H1Response | None = None  # None = nothing has come of the answer, or all of it at once
        self._draining = False  # the client has its whole answer
        self._handed_over = False
        self.keep_alive = True  # the client's connection stays open behind the answer

    def send(self, connection: Connection) -> None:
        """Send it on a connection to the backend that is free. The slot is held, the memory counted."""
        member, state = self.member, self.member.state
        fields = {**self.fields, **member.changes}
        for name in member.dropped:
            del fields[name]
        body = _encode(fields)
        self._id = id_ = request_id(None)
        self._began = self._client.loop.time()
        self._connection = connection
        self._tokens = tokens = state.ratio.probably(self.prompt_bytes)
        state.prompt_tokens += tokens
        self._services.pulse.add_untimed(self)
        head = (member.before, id_.encode(), member.after, b"%d\r\n\r\n" % len(body), body)
        connection.begin_taken(b"".join(head), self)

    def release_memory(self) -> None:
        if self.share is not None:
            self.share.close()
        else:
            self._memory.used -= self.tiny

    # -- a whole answer -------------------------------------------------------------------------------------------

    def answered(self, body: bytes) -> None:
        """As `Taker`."""
        if not self._send_whole(body):
            self._response = self._connection.answered_with(body)
            self.hand_over()

    def expect(self, response: H1Response) -> None:
        """As `Taker`."""
        self._response = response

    def arrived(self) -> None:
        """As `Taker`."""
        response = self._response
        assert response is not None
        try:
            if self._draining:
                if response.complete or response.failure is not None:
                    self._end_stream()
            elif response.status == 200 and response.failure is None and response.is_plain:
                if self._decision.like.stream:
                    self._pass_on(response)
                elif response.complete:
                    body = response.take()
                    if not self._send_whole(body):
                        response.give_back(body)
                        self.hand_over()
                elif response.size > LARGE:
                    self.hand_over()
            elif response.status or response.failure is not None:
                self.hand_over()
        except Exception as error:
            if self._draining or self._handed_over:
                raise
            self._begin_under_way().error = error
            self.hand_over()

    def _send_whole(self, body: bytes) -> bool:
        """Send a whole answer in which there is nothing to do. False = nothing was done."""
        decision, member, client = self._decision, self.member, self._client
        size, like, memory = len(body), decision.like, self._memory
        if like.stream or size > PIECE or size > decision.snapshot.server.max_body or not client.ready:
            return False
        if not self.keep_alive or (memory.limit is not None and memory.used + size > memory.limit):
            return False
        answer: WholeAnswer | None = None
        if member.policy is None and not like.tools:
            plain = read_plain(body, member.thoughts)
            if plain is None:
                return False
            model, usage = plain
        else:
            answer = self._inspect(body)
            if answer is None:
                return False
            model, usage = answer.model, answer.usage
        sent = decision.renaming.apply(body, model)
        first_token = client.loop.time()
        lines = b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\n%s"
        client.answer_whole(lines % (len(sent), self._id.encode(), member.lines), sent)
        self._end(first_token, usage, answer)
        return True

    def _inspect(self, body: bytes) -> WholeAnswer | None:
        """The answer to a request with tools, if it can be sent as it is."""
        received, member = self._begin_under_way().received, self.member
        policy, thoughts = policy_for(received.request, received.alias, member.candidate, time.monotonic())
        answer = read_whole(body, received.request, policy, thoughts)
        odd = answer.violations or answer.mended or answer.empty or answer.disobeyed
        return None if answer.failure is not None or odd else answer

    def _end(self, first_token: float, usage: dict[str, object] | None, answer: WholeAnswer | None) -> None:
        """The client has its whole answer: release everything, and count it."""
        state, under_way = self.member.state, self._under_way
        self._draining = True
        state.evidence.succeeded()
        if self._response is None:
            self._connection.free()
        else:
            self._response.watcher = None
            self._response.release()
        if under_way is not None:
            under_way.attempt.first_token, under_way.attempt.usage = first_token, usage
            under_way.attempt.answer = answer
            self._settle(under_way)
        else:
            services = self._services
            self.release_memory()
            services.pulse.discard_untimed(self)
            state.prompt_tokens -= self._tokens
            services.admission.scheduler.release_one(state, self._decision.client.name, self.since, time.monotonic())
            self._settle_at_once(first_token, usage)
        self._client.completed()

    def _settle_at_once(self, first_token: float, usage: dict[str, object] | None) -> None:
        """Count a request that was over before it needed any objects."""
        services, decision = self._services, self._decision
        client, alias, backend = decision.client.label, decision.alias.name, self.member.state.name
        seconds, first = self._client.loop.time() - self._began, first_token - self._began
        used, at = None, time.time()
        if self.prompt_bytes < LEARN_FROM and not services.observers:
            try:
                used = services.settler.settle_usual(client, alias, backend, CHAT.name, at, seconds, first, usage)
            except Exception:
                services.metrics.failures.note("settle", f"counting request {self._id}")
                return
        if used is None:
            record, attempt = self._records(self._inference_request())
            attempt.first_token, attempt.usage, attempt.answered = first_token, usage, True
            record.seconds, record.queued = seconds, 0.0
            services.settle(record)
        elif services.line_observers:
            who = at, self._id, client, alias, CHAT.name, False, backend
            services.tell(RequestLine(*who, 1, "200", None, (), (), used, 0.0, first, seconds))

    # -- a stream -------------------------------------------------------------------------------------------------

    def _pass_on(self, response: H1Response) -> None:
        """Send what has arrived, if that needs nothing else."""
        under_way = self._begin_under_way()
        relay = under_way.relay
        if relay is None:
            if not is_stream(response):
                self.hand_over()
                return
            relay = self._begin_relay(under_way)
        if (data := response.take()) and not relay.pass_on(data):
            if not self._pass_on_other(under_way, relay):
                under_way.unread = data
                self.hand_over()
                return
            if self._draining:
                return
        if response.complete or response.failure is not None:
            self.hand_over()

    def _begin_relay(self, under_way: UnderWay) -> StreamRelay:
        member, request = self.member, under_way.received.request
        policy, thoughts = member.policy, member.thoughts
        if request.tools:
            policy, thoughts = policy_for(request, self._decision.alias, member.candidate, time.monotonic())
        reply = under_way.reply = stream_reply(self._context(under_way), under_way.received, member.state)
        assert reply is not None
        track = StreamTrack(request, reply.identity, policy, thoughts)
        gaps = self._services.metrics.inter_token.child(member.state.name)
        relay = under_way.relay = StreamRelay(reply, track, member.state, under_way.timer, gaps, None)
        return relay

    def _pass_on_other(self, under_way: UnderWay, relay: StreamRelay) -> bool:
        """What the relay has left: the first content, and the end of a complete stream. False = something else."""
        track, reply, exchange = relay.track, under_way.reply, under_way.exchange
        assert reply is not None
        if relay.unread or track.failure is not None or track.disobeyed or not exchange.ready:
            return False
        ends = track.complete and len(relay.out) <= LAST_MOST
        if track.done and not ends:
            return False
        if relay.out:
            if not reply.committed:
                self._begin_reply(reply, exchange)
            if track.content and not reply.content:
                reply.content = True
                under_way.attempt.first_token = under_way.timer.now()
        if ends:
            self._finish_stream(under_way, relay)
        elif relay.out:
            exchange.put(relay.out)
            relay.out = b""
            under_way.timer.beat_at = under_way.timer.heard + HEARTBEAT
        return True

    def _begin_reply(self, reply: StreamReply, exchange: FastExchange) -> None:
        member = self.member
        reply.committed, reply.served_by = True, member.state.name
        lines = b"%sx-request-id: %s\r\n%s" % (self._decision.stream_lines, self._id.encode(), member.lines)
        exchange.begin(200, lines, chunked=True)

    def _finish_stream(self, under_way: UnderWay, relay: StreamRelay) -> None:
        track, attempt, exchange = relay.track, under_way.attempt, under_way.exchange
        track.conclude()
        several = len(self._decision.snapshot.clients) > 1
        feedback = Feedback(under_way.received.request, self._id, several_clients=several)
        count_found(track, self.member.state, feedback, self._services.metrics)
        attempt.answer, attempt.usage = track, track.usage
        exchange.stop_watching()
        exchange.write_last(relay.out + b"data: [DONE]\n\n")
        self._draining = True
        assert self._response is not None
        if self._response.complete:
            self._end_stream()
        else:
            under_way.timer.rest()
            under_way.timer.expect(TAIL)

    def _end_stream(self) -> None:
        """The client has its whole stream: release everything, and count it."""
        under_way, response = self._under_way, self._response
        assert under_way is not None
        assert response is not None
        self.member.state.evidence.succeeded()
        response.watcher = None
        response.release()
        self._settle(under_way)
        under_way.exchange.completed()

    # -- a request that lasts -------------------------------------------------------------------------------------

    def begin_timing(self) -> None:
        """As `Untimed`."""
        self._begin_under_way()

    def _begin_under_way(self) -> UnderWay:
        if self._under_way is not None:
            return self._under_way
        services, decision, state = self._services, self._decision, self.member.state
        client, request = decision.client, self._inference_request()
        received = ReceivedRequest(client, request, decision.alias)
        state.prompt_tokens -= self._tokens  # the lease counts them
        held = SlotGrant(state, 1, self.since, client.name)
        lease = Lease(services.admission.scheduler, self.member.candidate, held, request)
        timer = RequestTimer(services.pulse, None, self._beat, self._interrupted)
        timer.heard = self._began
        expect_first(timer, state, request)
        if request.stream:
            timer.beat_at = self._began + state.backend.timeouts.hold
        record, attempt = self._records(request)
        if self.share is None:
            self.share = Share.counted(self._memory, self._caller, self.tiny)
        exchange = self._client.exchange_of(self, self._caller, self.share)
        exchange.on_leave(self.left)
        under_way = self._under_way = UnderWay(services.on_short, exchange, received, lease, timer, record, attempt)
        services.pulse.discard_untimed(self)
        services.active.add(self)
        return under_way

    def _inference_request(self) -> InferenceRequest:
        sender = self._decision.client.name
        return self._decision.like.request(self.fields, self.limits, self.prompt_bytes, sender)

    def _records(self, request: InferenceRequest) -> tuple[RequestRecord, AttemptRecord]:
        client, alias = self._decision.client, self._decision.alias
        record = RequestRecord(self._id, CHAT, self._began, client.label, client.client, request, alias.name)
        attempt = record.trying = AttemptRecord(self.member.state, request, 1, None)
        record.attempts.append(attempt)
        return record, attempt

    @property
    def timer(self) -> RequestTimer:
        """As `ActiveRequest`."""
        return self._begin_under_way().timer

    @property
    def record(self) -> RequestRecord:
        """As `ActiveRequest`."""
        return self._begin_under_way().record

    @property
    def reply(self) -> StreamReply | None:
        return self._begin_under_way().reply

    def _settle(self, under_way: UnderWay) -> None:
        """The request has its answer."""
        services, record = self._services, under_way.record
        under_way.attempt.answered = True
        under_way.lease.release()
        under_way.timer.close()
        self.release_memory()
        services.active.discard(self)
        record.seconds = self._client.loop.time() - record.began
        record.queued = 0.0
        record.committed = under_way.reply is not None
        services.settle(record)
        record.release_bytes()

    def _context(self, under_way: UnderWay) -> RequestContext:
        snapshot, timer = self._decision.snapshot, under_way.timer
        return RequestContext(self._services, snapshot, under_way.exchange, timer, under_way.record)

    # -- handed over ----------------------------------------------------------------------------------------------

    def left(self) -> None:
        """The client has left."""
        self._interrupted(ClientGone())

    def _interrupted(self, reason: BaseException) -> None:
        """The timer's: the request is ended from outside, or something took too long."""
        if self._draining:
            self._end_stream()
            return
        under_way = self._begin_under_way()
        if under_way.reason is None or isinstance(under_way.reason, SilenceFailure):
            under_way.reason = reason
        self.hand_over()

    def _beat(self) -> None:
        """The timer's: a heartbeat is due. The slow lane sends it."""
        timer = self._begin_under_way().timer
        timer.beat_at = timer.now()
        self.hand_over()

    def hand_over(self) -> None:
        """The slow lane goes on."""
        if self._handed_over or self._draining:
            return
        self._handed_over = True
        under_way = self._begin_under_way()
        if self._response is None:
            self._connection.respond()
        assert self._response is not None
        self._response.watcher = None
        under_way.response = self._response
        active = self._services.active
        handler = RequestHandler(self._services, CHAT, under_way.exchange, begun=under_way)
        active.discard(self)
        active.add(handler)
        under_way.exchange.run_by(handler)
