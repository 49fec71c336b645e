"""One attempt on one backend: the request that is sent, how its answer is judged, and how the answer reaches the
client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from functools import partial

import msgspec
from msgspec import Raw

from gateway.domain.backend import BackendState
from gateway.domain.body import UNREADABLE, unreadable
from gateway.domain.endpoints import EMBEDDINGS
from gateway.domain.reason import prefixed, quoting, reason_of
from gateway.domain.request import OwnForm
from gateway.domain.upstream import (
    ConnectFailure,
    ErrorTold,
    OwnFailure,
    PoolFull,
    ProtocolFailure,
    Response,
    SilenceFailure,
    UnreadableOutput,
    UpstreamFailure,
    read_beginning,
    read_counted,
    read_past,
)
from gateway.engines.base import EngineRequest, NativeRequest, WholeResponse
from gateway.engines.forms import messages_in_form
from gateway.engines.outgoing import forms_for, outgoing_fields
from gateway.engines.registry import send
from gateway.errors import GatewayError, exhausted
from gateway.inspection import rewrite
from gateway.inspection.assembler import begins_events, whole_of
from gateway.inspection.continued_track import ContinuedTrack
from gateway.inspection.error_replies import POOL_PAUSE, UNREAD, Verdict
from gateway.inspection.heuristics import empty_kind
from gateway.inspection.known_errors import POOL_FULL
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.pooled import in_encoding
from gateway.inspection.reasoning import Thoughts
from gateway.inspection.sent_text import SentText
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.unparsed import as_answer, calls_told
from gateway.inspection.whole import WholeAnswer, read_whole
from gateway.large_bodies import LARGE, SEARCHED, apart
from gateway.proxy.exchange import ClientGone
from gateway.proxy.failures import AttemptFailed, StreamBroken
from gateway.proxy.feedback import count_found, learn_forms, verdict_of, verdict_of_told
from gateway.proxy.notice import Notice, notice_of
from gateway.proxy.reply import (
    LOADING_TOLD,
    Header,
    StreamReply,
    attempt_headers,
    base_headers,
    listed,
    send_whole,
)
from gateway.proxy.results import judge_results
from gateway.proxy.silence import expect_first
from gateway.proxy.stages import AdmittedRequest, RequestContext
from gateway.proxy.stream_relay import StreamRelay, is_stream, read_otherwise
from gateway.routing.inspection_policy import policy_for
from gateway.routing.plan import loads_first
from gateway.routing.resume import BrokenStream, may_continue
from gateway.shortage import shortage_of

ERROR_BODY_MOST = 1024 * 1024  # bytes of an upstream's error answer that are read
LAST_MOST = 64 * 1024  # bytes of last events that are written together with the end; more waits for the client to read
TAIL = 1.0  # seconds for upstream to end its body after the last event


class Attempt:
    """One attempt of an admitted request, run once. Its record has the result, however the attempt ended."""

    def __init__(self, context: RequestContext, admitted: AdmittedRequest) -> None:
        self.request_id = context.record.id
        self.candidate = admitted.candidate
        self.alias = admitted.alias
        self.record = admitted.record
        self.request = admitted.record.request
        self.reply = admitted.planned.reply
        self.exchange = context.exchange
        self.timer = context.timer
        self.metrics = context.services.metrics
        self.spare: WholeAnswer | StreamTrack | None = None  # a complete but empty answer; see `deliver`
        self._context = context
        self._admitted = admitted
        decision = admitted.planned.received.decision
        # What was decided for requests like this one; None: it is decided now.
        self._decided = None if decision is None else decision.backend_for(self.candidate, self.alias, self.request)
        self._headers: list[Header] = []  # response headers about this attempt
        self._kept: BrokenStream | None = None  # what was sent, where another backend could go on with it
        self._called: EngineRequest | None = None
        self._notice: Notice | None = None
        if self.record.detour is not None:
            states = context.services.fleet.states
            self._notice = notice_of(self.alias, self.request, self.candidate.state, states, self.record.detour)
        self._messages: Raw | None = None  # of a large chat, in the form of the backend
        self._sent_id = ""  # the backend's id of this request, where the client chose it

    async def run(self) -> None:
        """Returns when the client has its whole answer. Raises AttemptFailed, StreamBroken, or the reason of an
        interruption."""
        state = self.candidate.state
        response: Response | None = None
        delivered = False
        reason: BaseException | None = None
        try:
            if self.request.prompt_bytes > SEARCHED and "messages" in self.request.fields:
                self._messages = await self._messages_in_form(self.request.fields["messages"])
            call = self._called = self._call()
            if (decided := self._decided) is not None and not self.request.tools:
                policy, thoughts = decided.policy, decided.thoughts
            else:
                policy, thoughts = policy_for(self.request, self.alias, self.candidate, time.monotonic())
            self._expect_first()
            response = await send(state, call, self._context.services.on_short)
            if response.status >= 300:
                begun = await read_beginning(response, ERROR_BODY_MOST, self.exchange.share.add)
                body = state.backend.without_key(begun)
                if (text := calls_told(body, policy)) is None:
                    raise AttemptFailed(verdict_of(call, self.request, state, response, body))
                response.release()
                response = WholeResponse(200, as_answer(text))
            found = await self._relay(response, policy, thoughts)
            delivered = True
            state.evidence.succeeded()
            if self.request.corrected is not None:
                learn_forms(state, self.request, self.request_id)
            violation = getattr(response, "violation", None)  # set by engines that detect one themselves
            if violation is not None and violation not in found:
                self.metrics.violations.inc(state.name, violation)
        except asyncio.CancelledError:
            reason = self.timer.take_reason()
            if reason is None:
                raise
            if not isinstance(reason, UpstreamFailure):
                raise reason from None
            raise self._failure(reason) from None
        except UpstreamFailure as failure:
            raise self._failure(failure) from None
        except (AttemptFailed, StreamBroken, GatewayError, ClientGone):
            raise
        except Exception as error:
            if response is None or shortage_of(error) is not None:
                raise
            if not delivered:
                raise self._unreadable(error) from error
            self.metrics.failures.note("answer", f"what follows the answer to {self.request_id}")
        finally:
            self.timer.attempt_ended()
            if self.record.prompt is not None:
                self.record.prompt.end()
            if self._sent_id:
                ended = delivered or (response is not None and response.status >= 300)
                self._context.services.sent_ids.release(self._sent_id, self.timer.now(), ended=ended)
            reason = None  # breaks a cycle with this frame, which would keep the whole answer until a collection
            if response is not None:
                response.release()

    async def _relay(
        self, response: Response, policy: InspectionPolicy | None, thoughts: Thoughts | None
    ) -> Collection[str]:
        """Send the answer to the client. Returns the violations that were found in it."""
        if self.reply is not None:
            track = StreamTrack(self.request, self.reply.identity, policy, thoughts)
            if (goes_on := self._admitted.goes_on) is not None:
                track = ContinuedTrack(goes_on.request, self.reply.identity, *goes_on[1:])
            await self._relay_stream(self.reply, track, response)
            return track.violations
        most = self._context.snapshot.server.max_body
        body = await read_counted(response, most, self.exchange.share.add)
        if self.request.endpoint.chunk_object and begins_events(body):
            body = whole_of(body, self.request.endpoint, most)
        read = partial(read_whole, body, self.request, policy, thoughts)
        answer = read() if len(body) <= LARGE else await apart(self.request.sender, read)
        del body, read
        if self.request.endpoint.pools and answer.failure is None:
            services, asked = self._context.services, (self.request, self.alias, self.candidate.state)
            results = answer.results  # judging lets go of them
            serves = services.prober.suspicion.serves
            inability = await judge_results(answer, *asked, services.fleet.states, serves)
            if inability is not None:
                raise self._unused(answer, "incapable", inability)
            if self.request.endpoint is EMBEDDINGS:
                encode = partial(in_encoding, answer.body, results, self.request.fields)
                large = len(answer.body) > LARGE
                answer.body = await apart(self.request.sender, encode) if large else encode()
        await self._relay_whole(answer)
        return answer.violations

    async def deliver(self) -> None:
        """After `run`: send the `spare` answer, because no other backend had a better one."""
        if isinstance(self.spare, WholeAnswer):
            await self._deliver_whole(self.spare)
        elif self.spare is not None and self.reply is not None:
            await self._deliver_held(self.reply, self.spare)
            self._answered(self.spare)
            await self.reply.finish()

    # -- send -----------------------------------------------------------------------------------------------------

    def _call(self) -> EngineRequest:
        """The request for the backend. Also sets the response headers about this attempt."""
        request, state, record, decided = self.request, self.candidate.state, self.record, self._decided
        adapted: list[str] = []
        told: list[tuple[str, str]] = []
        if decided is not None:
            fields = decided.fields(request)
        else:
            try:
                fields, adapted = outgoing_fields(request, self.alias, state, self.candidate.adapt, self._messages)
            except UNREADABLE as error:
                self.record.unsent = True
                raise unreadable(error) from None
            told = self._tell_session(state, fields)
        # Each attempt has an id of its own, so that two backends never share one (vLLM derives the id of its reply from
        # it).
        up_id = self.request_id if record.number == 1 else f"{self.request_id}-{record.number}"
        if b"x-request-id" in self.exchange.headers:
            up_id = self._sent_id = self._context.services.sent_ids.take(up_id, self.timer.now())
        if self._context.record.described:
            adapted = [*adapted, "images_described"]
        for kind in adapted:
            self.metrics.adapted.inc(self.alias.name, kind)
        record.adapted = adapted
        if self.reply is not None and may_continue(request, self.alias, fields, begun=self.reply.identity.role_sent):
            self._kept = BrokenStream(dict(fields), SentText(self.exchange.share.add))
        queued = round(self._admitted.queued * 1000)
        self._headers = attempt_headers(state.name, record.number, queued, record.detour, adapted)
        own = None if request.own is None else self._native(request.own, fields)
        head = decided.head if decided is not None else None
        headers = [*self._context.headers_sent(up_id), *told] if head is None else []
        call = EngineRequest(request.endpoint, request.stream, fields, headers, self.request_id, own)
        call.head, call.sent_id = head, up_id
        call.memory, call.sender = self.exchange.share, request.sender
        call.local_only = self._context.record.privacy.local_only
        return call

    def _native(self, form: OwnForm, chat: dict[str, Raw]) -> NativeRequest | None:
        """The client's own request, where this server is asked at the endpoint that the client has asked; None: it gets
        `chat`, and the client is told what was left out of that."""
        how = None if self._admitted.goes_on is not None else self.candidate.state.own_responses(time.monotonic())
        fields = None if how is None else form.body(self.request, chat, how)
        if fields is not None:
            return NativeRequest(form, fields)
        if form.left_out:
            self._headers.append((b"x-gateway-left-out", listed(form.left_out)))
        return None

    async def _messages_in_form(self, messages: Raw) -> Raw:
        forms = forms_for(self.request, self.candidate.state, time.monotonic())
        return await apart(self.request.sender, partial(messages_in_form, messages, forms))

    def _tell_session(self, state: BackendState, fields: dict[str, Raw]) -> list[tuple[str, str]]:
        """Write the session's id into the field where the server reads it, or return it as a header. Others are not
        told."""
        name = state.forms(time.monotonic()).session
        if name is None or name in fields or (told := self._admitted.planned.session_sent(name)) is None:
            return []
        if "-" in name:
            return [(name, told)]
        fields[name] = Raw(msgspec.json.encode(told))
        return []

    def _expect_first(self) -> None:
        timer, state = self.timer, self.candidate.state
        timer.heard = timer.now()
        expect_first(timer, state, self.request)
        if self.reply is not None and loads_first(state):
            self.reply.loading = lambda: state.loading(time.monotonic())
            timer.beat_at = min(timer.beat_at, timer.heard + LOADING_TOLD)

    def _failure(self, failure: UpstreamFailure) -> Exception:
        """What a failure of the connection means: StreamBroken after content, else AttemptFailed."""
        if isinstance(failure, OwnFailure):
            return self._own_failure(failure)
        state = self.candidate.state
        reason = reason_of(failure, foreign=state.traits.library)
        unread = isinstance(failure, UnreadableOutput)
        verdict = Verdict("empty", quoting(UNREAD, str(failure))) if unread else Verdict("failed", reason)
        if isinstance(failure, PoolFull):
            verdict = Verdict("cooldown", reason, message=POOL_FULL, retry_after=POOL_PAUSE)
        if self.reply is None or not self.reply.content or isinstance(failure, ConnectFailure):
            if isinstance(failure, ErrorTold) and self._called is not None:
                verdict = verdict_of_told(self._called, self.request, state, failure, reason)
            return AttemptFailed(verdict, failure)
        off = self._kept if self.timer.now() < self.timer.total_at else None
        words, silent = prefixed(f"{state.name} ", reason), isinstance(failure, SilenceFailure)
        return StreamBroken(words, verdict, timeout=silent, off=off)

    def _unreadable(self, error: Exception) -> Exception:
        """Our own code failed on this answer: a defect in the gateway. The next backend is tried, because its answer
        will differ."""
        self.metrics.failures.note("answer", f"reading what {self.candidate.state.name} answered to {self.request_id}")
        self.record.answered = False
        failure = self._failure(ProtocolFailure(f"its answer could not be read ({type(error).__name__})"))
        return StreamBroken(str(failure)) if self.reply is None and self.exchange.started else failure

    def _own_failure(self, failure: OwnFailure) -> Exception:
        """This process itself lacked a resource: no evidence about the backend, and another backend would not help."""
        if self.reply is not None and self.reply.content:
            return StreamBroken(str(failure))
        self.record.unsent = failure.unsent
        return exhausted(failure.shortage)

    # -- commit and relay: a stream -------------------------------------------------------------------------------

    async def _relay_stream(self, reply: StreamReply, track: StreamTrack, response: Response) -> None:
        """Relay whole events as they arrive; nothing is sent before the backend's first output."""
        state, timer = self.candidate.state, self.timer
        most = self._context.snapshot.server.max_body
        first = (
            b"" if is_stream(response) else await read_otherwise(response, self.request.endpoint, most, self.exchange)
        )
        gaps = self.metrics.inter_token.child(state.name)
        kept = self._kept.sent if self._kept is not None else None
        relay = StreamRelay(reply, track, state, timer, gaps, kept, self._notice)
        goes_on = self._admitted.goes_on is not None
        self.record.track = track
        unread = first if first and not relay.pass_on(first) else b""
        while True:
            data = unread or await read_past(response, relay.pass_on)
            unread = b""
            if relay.unread:
                await relay.read_apart()
            if not data:
                await relay.finish()
            if goes_on and relay.begun:
                await self._begin(reply)
            if relay.out:
                await self._commit(reply, track)
                if track.complete and len(relay.out) <= LAST_MOST:
                    break  # sent together with the end
                await relay.send()
            if track.failure is not None:
                raise track.why()
            if track.done or track.disobeyed or not data:
                break
        if not (track.whole or track.disobeyed):
            raise UpstreamFailure("the stream ended without a finish_reason")
        track.conclude()
        count_found(track, state, self._context.feedback(self.request), self.metrics)
        if track.disobeyed:
            raise self._unused(track, "disobeyed", "did not call the tool that it had to call")
        if track.held or not (track.content or track.reasoning):
            if track.empty:
                self._count_empty(track)
            await self._deliver_held(reply, track)
        self._answered(track)
        await reply.finish(relay.out)
        if data:
            await self._drain(response)

    async def _commit(self, reply: StreamReply, track: StreamTrack) -> None:
        """Send the status before the first output. Once content is sent no other backend is tried; reasoning alone
        allows it."""
        if self.record.prompt is not None:
            self.record.prompt.computed(time.monotonic())
        if track.content and not reply.content:
            await reply.begin(self.candidate.state.name, self._headers)
            reply.content = True
            self._acquit_request()
            self.record.first_token = self.timer.now()
        elif not reply.committed:
            await reply.begin(self.candidate.state.name, self._headers)

    async def _begin(self, reply: StreamReply) -> None:
        name = self.candidate.state.name
        if self._admitted.goes_on is None:
            await reply.begin(name, self._headers)
        elif self._context.record.resumed != name:
            self._context.record.resumed = name
            self.metrics.resumed.inc(self.alias.name, name)
            await reply.resume(name)

    async def _deliver_held(self, reply: StreamReply, track: StreamTrack) -> None:
        await self._begin(reply)
        held = track.release_held()
        await reply.send(held if self._notice is None else self._notice.put_into(held))

    async def _drain(self, response: Response) -> None:
        """After the last event was sent: read the end of the upstream body, so that its connection can be reused."""
        self.timer.expect(TAIL)
        try:
            while await response.read_some():
                pass
        except UpstreamFailure:
            pass
        except asyncio.CancelledError:
            if self.timer.take_reason() is None:
                raise

    # -- commit and relay: a whole answer -------------------------------------------------------------------------

    async def _relay_whole(self, answer: WholeAnswer) -> None:
        """Judge the answer, then send it."""
        if answer.failure is not None:
            raise ErrorTold(answer.failure, answer.body) if answer.told else UpstreamFailure(answer.failure)
        count_found(answer, self.candidate.state, self._context.feedback(self.request), self.metrics)
        if answer.disobeyed:
            raise self._unused(answer, "disobeyed", "did not call the tool that it had to call")
        if answer.empty:
            self._count_empty(answer)
        await self._deliver_whole(answer)

    async def _deliver_whole(self, answer: WholeAnswer) -> None:
        headers = base_headers(self.request_id, self.alias.name) + self._headers
        if answer.mended:
            headers.append((b"x-gateway-mended", ",".join(sorted(answer.mended)).encode()))
        self.record.first_token = self.timer.now()
        self._answered(answer)
        self._expect_reader()
        answer.body = rewrite.whole(answer.body, answer.model, self.request.model)
        if self._notice is not None:
            answer.body = self._notice.end(answer.body)
        await send_whole(self.exchange, 200, answer.body, headers, self.timer.last_write)

    def _expect_reader(self) -> None:
        """From now on only the client's reading is timed, with the limit of a stream's client or the backend's own."""
        timer, timeouts = self.timer, self.candidate.state.backend.timeouts
        timer.excuse = None
        idle, first = timeouts.idle, timeouts.first_byte
        timer.budget = first if idle is None or (first is not None and first < idle) else idle
        timer.last_write()

    # -- results of the inspection --------------------------------------------------------------------------------

    def _count_empty(self, answer: WholeAnswer | StreamTrack) -> None:
        """Count an empty answer, even if another backend answers in its place. One other candidate is tried; if its
        answer is no better, this one is delivered. To a text that the client began, nothing may be missing."""
        if self.request.continues:
            return
        if "nothing_said" not in answer.violations:  # an answer of thoughts alone is counted already
            self.metrics.violations.inc(self.candidate.state.name, empty_kind(answer.usage))
        if self.request.json_schema and answer.reasoned:
            raise self._unused(answer, "disobeyed", "answered in its thoughts, not in the form that was asked for")
        if not self._admitted.final:
            self.spare = answer
            raise self._unused(answer, "empty", "answered with nothing", spare=self)

    def _unused(
        self, answer: WholeAnswer | StreamTrack, kind: str, reason: str, spare: Attempt | None = None
    ) -> AttemptFailed:
        """The failure for a complete answer that the client does not get; its tokens are counted."""
        self.record.unused = answer.usage
        return AttemptFailed(Verdict(kind, reason), spare=spare)

    def _answered(self, answer: WholeAnswer | StreamTrack) -> None:
        record = self.record
        record.answered = True
        self._acquit_request()
        record.answer = answer
        record.usage = answer.usage

    def _acquit_request(self) -> None:
        """The attempt has content for the client, so other attempts did not fail because of the request."""
        if self._admitted.on_answer is not None:
            self._admitted.on_answer()
