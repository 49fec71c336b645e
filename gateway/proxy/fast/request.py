"""One request on the fast lane, from the moment at which it is sent: served in the callbacks of its two connections.

It passes on an answer in which there is nothing to do. Whatever else happens is the slow lane's: the request is handed
over as it is to a `RequestHandler`, which goes on from there in a task.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import Raw

from gateway.accounting.limits import Charge
from gateway.accounting.record import RequestRecord, usual_line
from gateway.admission.caller import Caller
from gateway.admission.memory import Memory, Share
from gateway.domain.request import CHAT, InferenceRequest
from gateway.domain.request_timer import RequestTimer
from gateway.domain.token_ratio import LEARN_FROM
from gateway.domain.upstream import SilenceFailure
from gateway.domain.usage import NO_TOKENS, Tokens
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import WholeAnswer, read_plain, read_whole
from gateway.large_bodies import LARGE
from gateway.proxy.exchange import PIECE, ClientGone
from gateway.proxy.fast.client import FastClient
from gateway.proxy.fast.decisions import Decision, Member
from gateway.proxy.fast.under_way import UnderWay, new_record
from gateway.proxy.handler import RequestHandler
from gateway.proxy.reply import request_id
from gateway.proxy.services import Services
from gateway.proxy.silence import expect_first
from gateway.routing.inspection_policy import policy_for
from gateway.transport.h1_connection import Connection
from gateway.transport.h1_response import H1Response

_encode = msgspec.json.Encoder().encode
Fields = dict[str, Raw]
_LINES = b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\n%s"


class FastRequest:
    """One request under way, and the taker of its backend's answer. Before it is sent, lane.py finds out what it has of
    its own: `fields`: of the body. `limits`: of the answer, where it has any (tokens). `prompt_bytes`: media included.
    `member`: the backend. `since`: when it began (monotonic seconds). `share`: its memory; None = it has `tiny` bytes,
    of which no account is kept. `charge`: what was counted against its client's tpm."""

    __slots__ = (
        "_client",
        "_connection",
        "_handed_over",
        "_memory",
        "_response",
        "_under_way",
        "answered_whole",
        "began",
        "caller",
        "charge",
        "decision",
        "fields",
        "id",
        "keep_alive",
        "limits",
        "member",
        "prompt_bytes",
        "services",
        "share",
        "since",
        "tiny",
        "tokens",
    )

    endpoint = CHAT
    id: str
    began: float  # in the loop's seconds
    tokens: int  # of the prompt, estimated
    limits: dict[str, int]
    prompt_bytes: int
    member: Member
    _connection: Connection

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
        self.services = services
        self._memory = memory
        self._client = client
        self.caller = caller
        self.decision = decision
        self.fields = fields
        self.since = since
        self.share: Share | None = None
        self.charge: Charge | None = None
        self.tiny = 0
        self._under_way: UnderWay | None = None
        self._response: H1Response | None = None  # None = nothing has come of the answer, or all of it at once
        self._handed_over = False
        self.answered_whole = False  # the client has its whole answer
        self.keep_alive = True  # the client's connection stays open behind the answer

    def send(self, connection: Connection) -> None:
        """Send it on a connection to the backend that no request uses. The slot is held, the memory counted."""
        member, state = self.member, self.member.state
        fields = {**self.fields, **member.changes}
        for name in member.dropped:
            del fields[name]
        body = _encode(fields)
        self.id = id_ = request_id(None)
        self.began = self._client.loop.time()
        self._connection = connection
        self.tokens = tokens = state.ratio.probably(self.prompt_bytes)
        state.prompt_tokens += tokens
        self.services.pulse.add_untimed(self)
        connection.begin_taken(b"%s%s%s%d\r\n\r\n" % (member.before, id_.encode(), member.after, len(body)), body, self)

    def release_memory(self) -> None:
        if self.share is not None:
            self.share.close()
        else:
            self._memory.used -= self.tiny

    # -- the answer -----------------------------------------------------------------------------------------------

    def answered(self, body: bytes) -> None:
        """As `Taker`."""
        try:
            if self._send_whole(body):
                return
        except Exception as error:
            self._failed(error)
        if not self.answered_whole:
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
            if response.error is not None:
                raise response.error
            if response.status == 200 and response.failure is None and response.is_plain:
                self._read(response)
            elif response.status or response.failure is not None:
                self.hand_over()
        except Exception as error:
            self._failed(error)
            self.hand_over()

    def _failed(self, error: Exception) -> None:
        """Our own code failed on the answer. Before the client has it, the slow lane gets the error."""
        if self.answered_whole:
            self.services.metrics.failures.note("answer", f"what follows the answer to {self.id}", error)
        else:
            self.begin_under_way().error = error

    def _read(self, response: H1Response) -> None:
        """Read what has come of an answer 200."""
        if response.complete:
            body = response.take()
            if not self._send_whole(body):
                response.give_back(body)
                self.hand_over()
        elif response.size > LARGE:
            self.hand_over()

    def _send_whole(self, body: bytes) -> bool:
        """Send a whole answer in which there is nothing to do. False = nothing was done."""
        decision, member, client = self.decision, self.member, self._client
        size, like, memory = len(body), decision.like, self._memory
        if like.stream or size > PIECE or size > decision.snapshot.server.max_body or not client.is_ready():
            return False
        if not self.keep_alive or (memory.limit is not None and memory.used + size > memory.limit):
            return False
        answer: WholeAnswer | None = None
        if member.policy is None and not like.tools:
            plain = read_plain(body, member.thoughts)
            if plain is None:
                return False
            (model, usage), mended = plain, body
        else:
            answer = self._inspect(body)
            if answer is None:
                return False
            model, usage, mended = answer.model, answer.usage, answer.body
        sent = decision.renaming.apply(mended, model)
        first_token = client.loop.time()
        client.answer_whole(_LINES % (len(sent), self.id.encode(), member.lines), sent)
        self._end(first_token, answer, usage)
        client.completed()
        return True

    def _inspect(self, body: bytes) -> WholeAnswer | None:
        """The answer to a request with tools, if nothing in it is counted; its `body` may be rewritten all the same."""
        under_way, member = self._under_way, self.member
        request = under_way.request if under_way is not None else self._inference_request()
        policy, thoughts = policy_for(request, self.decision.alias, member.candidate, time.monotonic())
        answer = read_whole(body, request, policy, thoughts)
        odd = answer.violations or answer.mended or answer.empty or answer.disobeyed
        return None if answer.failure is not None or odd else answer

    # -- its end --------------------------------------------------------------------------------------------------

    def _end(self, first_token: float, answer: WholeAnswer | StreamTrack | None, usage: dict[str, Any] | None) -> None:
        """The client has its whole answer: release everything, and count it."""
        services, state, under_way = self.services, self.member.state, self._under_way
        self.answered_whole = True
        response = self._response
        if response is None:
            self._connection.free()
        else:
            response.watcher = response.follower = None
            response.release()
        self.release_memory()
        if under_way is None:
            services.pulse.discard_untimed(self)
        else:
            under_way.timer.close()
            services.active.discard(self)
        state.prompt_tokens -= self.tokens
        services.admission.scheduler.release_one(state, self.decision.client.name, self.since, time.monotonic())
        state.evidence.succeeded()
        self._count(first_token, answer, usage)
        self._under_way = None  # it refers to this

    def _count(
        self, first_token: float, answer: WholeAnswer | StreamTrack | None, usage: dict[str, Any] | None
    ) -> None:
        services, decision = self.services, self.decision
        client, alias, backend = decision.client.label, decision.alias.name, self.member.state.name
        seconds, first = self._client.loop.time() - self.began, first_token - self.began
        at = time.time()
        used: Tokens | None = None
        teaches, ratio, sender = self.prompt_bytes >= LEARN_FROM, self.member.state.ratio, decision.client.name
        if not (services.observers or (teaches and ratio.is_due(self.prompt_bytes, sender))):
            try:
                used = services.settler.settle_usual(client, alias, backend, CHAT.name, at, seconds, first, usage)
                if teaches and used is not None:
                    ratio.due(self.prompt_bytes, sender)
            except Exception:
                services.metrics.failures.note("settle", f"counting request {self.id}")
                used = NO_TOKENS
        if self.charge is not None and used is not None:
            services.accounts.limits.spent(self.charge, used.total, time.monotonic())
        if used is None:
            self._settle(first_token, answer, usage, seconds)
        elif services.line_observers:
            stream = decision.like.stream
            line = usual_line(at, self.id, client, alias, CHAT.name, stream, backend, used, first, seconds)
            services.tell(line)

    def _settle(
        self,
        first_token: float,
        answer: WholeAnswer | StreamTrack | None,
        usage: dict[str, Any] | None,
        seconds: float,
    ) -> None:
        """Count it as any request is counted."""
        under_way = self._under_way
        record = under_way.record if under_way is not None else new_record(self, self._inference_request(), 0.0)
        (attempt,) = record.attempts
        attempt.first_token, attempt.usage, attempt.answer, attempt.answered = first_token, usage, answer, True
        record.seconds, record.queued, record.committed = seconds, 0.0, self.decision.like.stream
        self.services.settle(record)
        record.release_bytes()

    def forget_under_way(self) -> None:
        """The slow lane has it, or it is over."""
        self._under_way = None

    # -- a request that lasts -------------------------------------------------------------------------------------

    def begin_timing(self) -> None:
        """As `Untimed`."""
        self.begin_under_way()

    def begin_under_way(self) -> UnderWay:
        under_way = self._under_way
        if under_way is None:
            services, request = self.services, self._inference_request()
            if self.share is None:
                self.share = Share.counted(self._memory, self.caller, self.tiny)
            exchange = self._client.exchange_of(self.caller, self.share, keep_alive=self.keep_alive)
            if not self.answered_whole:
                exchange.on_leave(self.left)
            timer = RequestTimer(services.pulse, None, self._beat, self._interrupted)
            under_way = self._under_way = UnderWay(self, request, exchange, timer)
            self._set(under_way, request)
            services.pulse.discard_untimed(self)
            services.active.add(self)
        return under_way

    def _set(self, under_way: UnderWay, request: InferenceRequest) -> None:
        """Set its timer to how far the request is."""
        under_way.timer.heard = self.began
        expect_first(under_way.timer, self.member.state, request)

    def _inference_request(self) -> InferenceRequest:
        sender = self.decision.client.name
        return self.decision.like.request(self.fields, self.limits, self.prompt_bytes, sender)

    @property
    def timer(self) -> RequestTimer:
        """As `ActiveRequest`."""
        return self.begin_under_way().timer

    @property
    def record(self) -> RequestRecord:
        """As `ActiveRequest`."""
        return self.begin_under_way().record

    # -- handed over ----------------------------------------------------------------------------------------------

    def left(self) -> None:
        """The client has left."""
        self._interrupted(ClientGone())

    def _interrupted(self, reason: BaseException) -> None:
        """The timer's: the request is ended from outside, or something took too long."""
        if self._handed_over and self._under_way is None:
            return  # the slow lane has it
        under_way = self.begin_under_way()
        if under_way.reason is None or isinstance(under_way.reason, SilenceFailure):
            under_way.reason = reason
        self.hand_over()

    def _beat(self) -> None:
        """The timer's: a heartbeat is due. The slow lane sends it."""
        timer = self.begin_under_way().timer
        timer.beat_at = timer.now()
        self.hand_over()

    def hand_over(self) -> None:
        """The slow lane goes on."""
        if self._handed_over or self.answered_whole:
            return
        self._handed_over = True
        under_way = self.begin_under_way()
        if self._response is None:
            self._connection.respond()
        response = self._response
        assert response is not None
        response.watcher = response.follower = None
        under_way.response = response
        active = self.services.active
        handler = RequestHandler(self.services, CHAT, under_way.exchange, begun=under_way)
        active.discard(self)
        active.add(handler)
        under_way.exchange.run_by(handler)
