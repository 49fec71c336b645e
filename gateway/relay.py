"""One request, top to bottom:

    identify -> parse -> plan -> admit -> attempt -> commit -> relay -> settle

Read `Relay._answer` first: it is the order. Decisions are pure functions elsewhere (routing/, streaming.py,
upstream/answers.py); this file holds the effects.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from math import inf
from typing import Any

from gateway import access, rewrite
from gateway.admission.accounts import Reservation
from gateway.admission.course import Course, is_on_trial
from gateway.admission.limits import Charge
from gateway.admission.scheduler import QueueFull, Waiter, is_open, room
from gateway.admission.slots import Lease
from gateway.admission.waiting import admission_of
from gateway.compat.answer import silence_kind
from gateway.config.snapshot import Alias
from gateway.core import Gateway
from gateway.errors import GatewayError, PassedOn
from gateway.exchange import ClientGone, Exchange
from gateway.fleet import BackendState
from gateway.lessons import learn
from gateway.observe.settle import settle
from gateway.reply import Header, StreamReply, attempt_headers, base_headers, request_id, send_whole
from gateway.routing.balance import affinity_key
from gateway.routing.context import room_needed, silence_budget
from gateway.routing.expect import STRAY_THOUGHTS, expected_of
from gateway.routing.plan import Candidate, Plan, Resort, fits_window, forced, make_plan, near_limit, resort_of
from gateway.routing.refusal import Tried, refusal
from gateway.routing.request import Endpoint, InferenceRequest, parse
from gateway.routing.tasks import task_alias
from gateway.streaming import StreamTrack
from gateway.upstream.answers import Verdict, judge
from gateway.upstream.client import ConnectFailure, Response, SilenceFailure, StaleConnection, UpstreamFailure
from gateway.upstream.engines import ENGINES
from gateway.upstream.engines.base import Call
from gateway.upstream.outgoing import fields_up, headers_up
from gateway.upstream.sse import Framer
from gateway.upstream.tokenize import count_tokens
from gateway.upstream.whole import WholeAnswer, read_whole
from gateway.watch import ReaderStalled, Stopping, Watch

log = logging.getLogger("gateway.relay")

ERROR_BODY_MOST = 1024 * 1024  # bytes of an upstream's error answer that are read
TAIL = 1.0  # seconds for upstream to end its body after the last event
RETRY_UNKNOWN = 10.0  # seconds, where nothing tells how long others will take
COMING = frozenset({"rate_limit_exceeded", "backend_warming"})  # refusals that say when it may be otherwise


class Left(Exception):
    """An attempt that did not answer, before content: the next candidate's turn."""

    def __init__(self, verdict: Verdict, *, timeout: bool = False, gone: bool = False) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict
        self.timeout = timeout
        self.gone = gone


def _nobody() -> None:
    """Wakes nobody: its waiter has not begun to wait."""


class Broken(Exception):
    """The stream broke after content had been sent."""


class Relay:
    """One inference request. Made, run once, thrown away."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint, exchange: Exchange) -> None:
        self.gateway = gateway
        self.snapshot = gateway.snapshot  # this one to the end, whatever is loaded meanwhile
        self.endpoint = endpoint
        self.exchange = exchange
        self.watch = Watch(gateway.pulse, exchange.task(), self._beat)
        self.began = self.watch.now()
        self.request_id = request_id(exchange.headers.get(b"x-request-id"))
        self.client = access.NOBODY
        self.request: InferenceRequest
        self.alias: Alias | None = None
        self.course: Course
        self.turn = 0  # what round robin turns on
        self.waiter: Waiter | None = None  # its place in the waiting set, once it had to wait
        self.queued = 0.0  # seconds that it has waited for slots
        self.reply: StreamReply | None = None  # of a stream
        self.attempts = 0
        self.tried: list[Tried] = []
        self.asked_again: list[BackendState] = []  # once more with a smaller limit
        self.spare: tuple[Candidate, WholeAnswer | StreamTrack, list[Header]] | None = None  # complete but empty
        self.beating: asyncio.Task[None] | None = None
        # what `settle` records
        self.trying: BackendState | None = None  # an attempt that has no outcome yet
        self.served: BackendState | None = None
        self.usage: dict[str, Any] | None = None
        self.wasted: list[tuple[BackendState, dict[str, Any]]] = []  # the usage of complete answers that were not used
        self.first_token = 0.0
        self.outcome = "200"
        self.charge: Charge | None = None  # tokens counted against the client's tpm
        self.reserved: list[Reservation] = []  # what its attempts will probably cost, where a budget asks

    # -- the order ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer the request, whatever happens; everything taken is given back."""
        self.gateway.active.add(self)
        try:
            await self._answer()
        except GatewayError as error:
            await self._refuse(error)
        except asyncio.CancelledError:
            reason = self.watch.take()
            if reason is None:
                raise
            await self._stopped(reason)
        except (ClientGone, Stopping, ReaderStalled, Broken, UpstreamFailure) as reason:
            await self._stopped(reason)
        except Exception:
            log.exception("request %s failed inside the gateway", self.request_id)
            await self._refuse(GatewayError("internal_error", "The gateway failed on this request; see its log."))
        finally:
            self.watch.close()
            self.exchange.stop_watching()
            if self.beating is not None:
                self.beating.cancel()
            self.gateway.active.discard(self)
            settle(self)

    async def _answer(self) -> None:
        self.client = access.identify(self.snapshot, self.exchange.headers, self.exchange.peer)
        body = await self.exchange.read_body(self.snapshot.server.max_body)
        self.request = parse(self.endpoint, body)
        self.alias = self._find_alias()
        self.charge = self.gateway.accounts.limits.check(self.client.client, self.request, time.monotonic())
        self.exchange.on_leave(self._left)
        self._plan(self.alias)
        while (lease := await self._admit()) is not None:
            candidate = lease.candidate
            try:
                await self._attempt(candidate, last=not self.course.left and forced(candidate, self.request) is None)
                return
            except Left as left:
                lease.served = False
                if (again := self._note(candidate, left)) is not None:
                    self.course.once_more(again)
            finally:
                lease.release()
        await self._nothing_left()

    # -- plan -----------------------------------------------------------------------------------------------------

    def _find_alias(self) -> Alias:
        """The alias the client named; for the side calls of a client with `tasks` the one that answers those."""
        alias = access.find_alias(self.snapshot, self.client, self.request.model)
        if self.client.client is not None and self.client.client.tasks is not None:
            name = task_alias(self.request, self.client.client)
            alias = self.snapshot.resolve(name) or alias if name is not None else alias
        return alias

    @property
    def plan(self) -> Plan:
        return self.course.plan

    def _plan(self, alias: Alias) -> None:
        self.turn = self.gateway.next_turn(alias.name)
        self.course = Course(self._made_plan, resort_of(alias, self.client.client) if self.request.tools else None)
        if self.request.stream:
            base = base_headers(self.request_id, alias.name)
            self.reply = StreamReply(
                self.exchange, self.watch, self.endpoint, self.request.model, self.request_id, base
            )
            first = self.plan.candidates or self.plan.skipped
            if first:
                self.watch.beat_at = self.began + first[0].state.backend.timeouts.hold

    def _made_plan(self, resort: Resort | None = None, met: Mapping[str, str] | None = None) -> Plan:
        headers, alias = self.exchange.headers, self.alias
        assert alias is not None
        return make_plan(
            alias,
            self.gateway.fleet.states,
            self.request,
            time.monotonic(),
            local_only=self.client.local_only or headers.get(b"x-gateway-local-only") == b"1",
            turn=self.turn,
            key=lambda: affinity_key(self.request, headers, self.client.name, alias.name),
            client=self.client.client,
            resort=resort,
            broke=self.gateway.accounts.broke(self.snapshot, self.client.client),
            met=met,
        )

    async def _holds_prompt(self, candidate: Candidate) -> bool:
        """Near the limit of its window the backend itself counts the prompt; False = it is too long after all."""
        assert self.alias is not None
        state, request = candidate.state, self.request
        room = room_needed(request, self.alias.min_max_tokens)
        if not near_limit(state, request, room):
            return True
        tokens = await count_tokens(state, request)
        if tokens is None:
            return True
        request.exact[state.name] = tokens
        if fits_window(state, request, room):
            return True
        reason = "is too small for this prompt"
        self.tried.append(Tried(state.name, "too_long", reason, window=state.context, prompt_tokens=tokens))
        return False

    # -- admit ----------------------------------------------------------------------------------------------------

    async def _admit(self) -> Lease | None:
        """The slots of the next attempt, waited for if need be; None = nobody is left to ask. Raises `queue_full`,
        `queue_timeout`, and what would have been said at once when waiting for a backend to come did not help."""
        course, client = self.course, self.client
        limit = client.client.max_inflight if client.client is not None else None
        while True:
            candidate = course.head()
            if candidate is not None:
                if not await self._holds_prompt(candidate):
                    course.take(candidate)
                    course.leave(candidate, "too_long")
                    continue
                lease = admission_of(self.gateway).at_once(candidate, self.request, client.name, limit)
            else:
                lease = None
            if lease is None:
                lease = await self._wait(limit)
            if lease is None:
                if candidate is None and course.head() is None:
                    return None
                continue
            course.take(lease.candidate)
            if lease.candidate is candidate or await self._still_holds(lease):
                return lease

    async def _wait(self, limit: int | None) -> Lease | None:
        """Wait for what the plan offers, or for a backend to come. None = there is another plan now, or nothing to wait
        for."""
        now = time.monotonic()
        waiter = self.waiter
        if waiter is None:
            waiter = self.waiter = Waiter(self.client.name, self.began, _nobody, self._replan, limit=limit)
            waiter.weight, waiter.batch = self.request.choices, self._is_batch()
            waiter.watches = self.course.states()
        if not self._choose(now):
            self.course.anew(now)
            if not self._choose(now):
                return None
        waiter.returning = self.attempts > 0
        self.watch.expect(None)
        self.watch.total_at = inf
        admission = admission_of(self.gateway)
        try:
            self.queued += await admission.wait(waiter)
        except QueueFull as full:
            raise self._not_admitted(str(full), full.seconds) from None
        if waiter.granted is not None:
            held = waiter.granted
            candidate = next(c for c in self.course.left if c.state is held.state)
            return Lease(admission, candidate, held, self.request, self.client.name, limit)
        if waiter.late:
            seconds = admission.scheduler.expected(waiter, time.monotonic())
            raise self._not_admitted(f"no slot within {self.queued:.0f} s", seconds)
        return None

    def _choose(self, now: float) -> bool:
        """Set what the waiter takes: what is offered, else those that are coming before its deadline. False = nothing,
        or what is offered is not what it was when it was planned."""
        waiter, course = self.waiter, self.course
        assert waiter is not None
        scheduler = admission_of(self.gateway).scheduler
        offered = course.offered(lambda state: scheduler.is_busy(state, waiter.weight))
        waiter.pending = not offered
        waiter.choices = tuple(c.state for c in offered) or course.coming(now)
        if self.spare is not None and waiter.pending:
            return False
        if not waiter.place:
            waiter.deadline = self.began + max((s.backend.queue.max_wait for s in waiter.choices), default=0.0)
        if offered:
            return all(is_open(state, now) for state in waiter.choices)
        if not waiter.choices or course.has_returned(now):
            return False
        if any(is_on_trial(state, now) for state in waiter.choices):
            return True
        error = self._refusal(now)
        return error.code in COMING and now + (error.retry_after or 0.0) <= waiter.deadline

    def _replan(self, now: float) -> bool:
        """A backend of the alias has changed while this request waits. False = nothing is left to wait for."""
        try:
            self.course.anew(now)
            return self._choose(now)
        except Exception:  # it runs inside somebody else's turn
            log.exception("request %s could not be planned anew", self.request_id)
            return False

    async def _still_holds(self, lease: Lease) -> bool:
        """A sibling of the one whose window was looked at: is its window large enough, too?"""
        try:
            fits = await self._holds_prompt(lease.candidate)
        except BaseException:
            lease.release()
            raise
        if not fits:
            lease.release()
            self.course.leave(lease.candidate, "too_long")
        return fits

    def _is_batch(self) -> bool:
        assert self.alias is not None
        own = self.client.client.priority if self.client.client is not None else None
        return (own or self.alias.priority) == "batch"

    def _not_admitted(self, why: str, seconds: float | None) -> GatewayError:
        """Why it got no slot. Of one that waited for a backend to come: what is with that."""
        waiter = self.waiter
        assert waiter is not None
        assert self.alias is not None
        if waiter.pending:
            return self._refusal(time.monotonic())
        code = "queue_timeout" if waiter.late else "queue_full"
        names = ", ".join(state.name for state in waiter.choices)
        message = f"Every slot of alias '{self.alias.name}' is taken ({names}): {why}"
        return GatewayError(code, message, retry_after=RETRY_UNKNOWN if seconds is None else seconds)

    def _refusal(self, now: float) -> GatewayError:
        """Nobody can answer. One that was gone when it was asked, and is known to be by now, is no failed attempt."""
        away = {s.state.name for s in self.plan.skipped}
        tried = [t for t in self.tried if not (t.gone and t.backend in away)]
        return refusal(self.plan, tried, self.request, now)

    # -- attempt --------------------------------------------------------------------------------------------------

    async def _attempt(self, candidate: Candidate, *, last: bool) -> None:
        """One try on one backend. Returns when the client has its whole answer; raises Left or Broken."""
        spent = self.gateway.accounts.enter(candidate.state, self.client.client, self.request, self.reserved)
        if spent is not None:  # since the plan was made
            raise Left(Verdict("budget", spent))
        self.attempts += 1
        state = self.trying = candidate.state
        assert self.alias is not None
        if self.tried:
            self.gateway.metrics.failovers.inc(self.alias.name, self.tried[-1].kind)
        response: Response | None = None
        try:
            call, headers = self._call(candidate)
            self._expect_first(state)
            expected, thoughts = expected_of(self.request, self.alias, candidate, time.monotonic())
            response = await self._send(state, call)
            if response.status >= 300:
                body = await response.read_all(ERROR_BODY_MOST)
                raise Left(judge(response.status, response.headers, body, self.endpoint.name))
            if self.reply is not None:
                track = StreamTrack(self.request, self.reply.identity, expected, thoughts)
                await self._relay_stream(candidate, self.reply, track, response, headers, last=last)
                found = track.violations
            else:
                body = await response.read_all(self.snapshot.server.max_body)
                answer = read_whole(body, self.request, expected, thoughts)
                await self._relay_whole(candidate, answer, headers, last=last)
                found = answer.violations
            state.succeeded()
            violation = getattr(response, "violation", None)  # told by engines that can see one
            if violation is not None and violation not in found:
                self.gateway.metrics.violations.inc(state.name, violation)
        except asyncio.CancelledError:
            reason = self.watch.take()
            if reason is None:
                raise
            if not isinstance(reason, UpstreamFailure):
                raise reason from None
            raise self._failure(state, reason) from None
        except UpstreamFailure as failure:
            raise self._failure(state, failure) from None
        finally:
            self.watch.excuse = None
            self.watch.writing = 0.0  # an interrupted write is over
            if response is not None:
                response.release()

    def _call(self, candidate: Candidate) -> tuple[Call, list[Header]]:
        """(what goes up, the headers that tell the client of this attempt)."""
        assert self.alias is not None
        fields, adapted = fields_up(self.request, self.alias, candidate.state, candidate.adapt)
        # A later attempt's id differs, so that two backends never share one (vLLM makes its reply's id of it).
        up_id = self.request_id if self.attempts == 1 else f"{self.request_id}-{self.attempts}"
        call = Call(self.endpoint, self.request.stream, fields, headers_up(self.exchange.headers, up_id), up_id)
        for kind in adapted:
            self.gateway.metrics.adapted.inc(self.alias.name, kind)
        detour, queued = self.plan.detour(candidate), round(self.queued * 1000)
        headers = attempt_headers(candidate.state.name, self.attempts, queued, detour, adapted)
        return call, headers

    def _expect_first(self, state: BackendState) -> None:
        """Arm the silence budget of the time before the first event, and the total one."""
        watch, timeouts = self.watch, state.backend.timeouts
        if state.progress is not None:
            # Its own counters tell whether it works, also on what is still queued inside or decoded unseen.
            watch.excuse = lambda: max(state.last_event, state.moved_at)
        elif state.inflight > room(state):
            # It has more than it can run at once, so this one may wait inside: others' progress counts.
            watch.excuse = lambda: state.last_event
        if timeouts.total is not None:
            watch.total_at = min(watch.total_at, self.began + self.queued + timeouts.total)
        rates = state.prefill_rate, state.decode_rate
        watch.expect(timeouts.first_byte or silence_budget(self.request, state.prompt_tokens, *rates))

    async def _send(self, state: BackendState, call: Call) -> Response:
        engine = ENGINES[state.backend.engine]
        try:
            return await engine.send(state, call)
        except StaleConnection:
            # The backend's keep-alive timer won a race; nothing was processed. Once more, on a new connection.
            call.fresh = True
            return await engine.send(state, call)

    def _failure(self, state: BackendState, failure: UpstreamFailure) -> Exception:
        """What a failure of the connection means: Broken after content, else Left."""
        reason = f"{failure.kind}: {failure}" if str(failure) else failure.kind
        if self.reply is not None and self.reply.content:
            state.failed(reason)
            return Broken(f"{state.name} {reason}")
        timeout, gone = isinstance(failure, SilenceFailure), isinstance(failure, ConnectFailure)
        return Left(Verdict("failed", reason), timeout=timeout, gone=gone)

    # -- commit and relay -----------------------------------------------------------------------------------------

    async def _relay_stream(
        self,
        candidate: Candidate,
        reply: StreamReply,
        track: StreamTrack,
        response: Response,
        headers: list[Header],
        *,
        last: bool,
    ) -> None:
        """Whole events as they arrive; nothing before the backend has said something."""
        state, watch = candidate.state, self.watch
        if "text/event-stream" not in response.headers.get("content-type", ""):
            raise Left(Verdict("failed", f"answered a stream with {response.headers.get('content-type')!r}"))
        gaps = self.gateway.metrics.inter_token.child(state.name)
        framer = Framer()
        said = False
        while True:
            data = await response.read_some()
            out = track.take(framer.feed(data) if data else framer.finish())
            if track.progress:
                now = state.last_event = watch.now()
                if said:
                    gaps.observe(now - watch.heard)
                elif track.content or track.reasoning:
                    said = True
                    watch.expect(state.backend.timeouts.idle)
                watch.heard = now
            if out:
                await self._commit(reply, track, state, headers)
                await reply.send(out)
            if track.failure is not None:
                raise UpstreamFailure(track.failure)
            if track.done or track.disobeyed or not data:
                break
        if not (track.whole or track.disobeyed):
            raise UpstreamFailure("the stream ended without a finish_reason")
        track.conclude()
        self._found(candidate, track)
        if track.disobeyed:
            raise self._left_unused(candidate, track, "disobeyed", "did not call the tool that it had to call")
        if track.held or not (track.content or track.reasoning):
            if track.empty:
                self._silent(candidate, track, headers, last=last)
            await self._deliver_held(candidate, reply, track, headers)
        self._served(candidate, track.usage)
        await reply.finish()
        if data:
            await self._drain(response)

    async def _commit(self, reply: StreamReply, track: StreamTrack, state: BackendState, headers: list[Header]) -> None:
        """Content is on its way to the client: from here no other backend is tried. Reasoning only takes the status."""
        if track.content and not reply.content:
            await reply.begin(state.name, headers)
            reply.content = True
            self.first_token = self.watch.now()
        elif not reply.committed:
            await reply.begin(state.name, headers)

    async def _drain(self, response: Response) -> None:
        """The last event is out; let upstream end its body, so that its connection can be used again."""
        self.watch.expect(TAIL)
        try:
            while await response.read_some():
                pass
        except UpstreamFailure:
            pass
        except asyncio.CancelledError:
            if self.watch.take() is None:
                raise

    async def _relay_whole(
        self, candidate: Candidate, answer: WholeAnswer, headers: list[Header], *, last: bool
    ) -> None:
        """An answer in one piece: judged, then sent."""
        if answer.failure is not None:
            raise UpstreamFailure(answer.failure)
        self._found(candidate, answer)
        if answer.disobeyed:
            raise self._left_unused(candidate, answer, "disobeyed", "did not call the tool that it had to call")
        if answer.empty:
            self._silent(candidate, answer, headers, last=last)
        await self._deliver_whole(candidate, answer, headers)

    async def _deliver_whole(self, candidate: Candidate, answer: WholeAnswer, headers: list[Header]) -> None:
        if answer.mended:
            headers = [*headers, (b"x-gateway-mended", ",".join(sorted(answer.mended)).encode())]
        self.first_token = self.watch.now()
        self._served(candidate, answer.usage)
        self.watch.last_write()
        assert self.alias is not None
        body = rewrite.whole(answer.body, answer.model, self.request.model)
        await send_whole(self.exchange, 200, body, base_headers(self.request_id, self.alias.name) + headers)

    async def _deliver_held(
        self, candidate: Candidate, reply: StreamReply, track: StreamTrack, headers: list[Header]
    ) -> None:
        await reply.begin(candidate.state.name, headers)
        await reply.send(track.release_held())

    def _silent(
        self, candidate: Candidate, answer: WholeAnswer | StreamTrack, headers: list[Header], *, last: bool
    ) -> None:
        """Count an answer that says nothing, whoever may save it: it is tried on one other candidate, and when that is
        no better delivered as it is."""
        if "nothing_said" not in answer.violations:  # of thoughts alone it is counted already
            self.gateway.metrics.violations.inc(candidate.state.name, silence_kind(answer.usage))
        if self.spare is None and not last:
            self.spare = (candidate, answer, headers)
            self.course.has_spare = True
            raise self._left_unused(candidate, answer, "empty", "answered with nothing")

    def _left_unused(self, candidate: Candidate, answer: WholeAnswer | StreamTrack, kind: str, reason: str) -> Left:
        """A complete answer that the client does not get; its tokens count all the same."""
        if answer.usage is not None:
            self.wasted.append((candidate.state, answer.usage))
        return Left(Verdict(kind, reason))

    def _found(self, candidate: Candidate, answer: WholeAnswer | StreamTrack) -> None:
        """Count what was wrong with an answer and what was mended, and learn from it."""
        state, metrics = candidate.state, self.gateway.metrics
        for kind in answer.violations:
            metrics.violations.inc(state.name, kind)
        for kind in answer.mended:
            metrics.mended.inc(state.name, kind)
        if answer.stray_close:
            state.learn_lack(STRAY_THOUGHTS, time.monotonic())
        elif answer.never_closed:
            state.unlearn(STRAY_THOUGHTS)

    def _served(self, candidate: Candidate, usage: dict[str, Any] | None) -> None:
        self.served = candidate.state
        self.usage = usage

    # -- no answer ------------------------------------------------------------------------------------------------

    def _note(self, candidate: Candidate, left: Left) -> Candidate | None:
        """Record why a backend was left. Not None = try the same one again, now with what it has just told, or made to
        call a tool after a turn in which it said nothing."""
        assert self.alias is not None
        state, verdict = candidate.state, left.verdict
        if verdict.kind == "client":
            self.gateway.metrics.attempts.inc(state.name, "client_error")
            self.trying = None
            raise PassedOn(verdict.status, verdict.message, verdict.param, verdict.code)
        self.gateway.metrics.attempts.inc(state.name, verdict.kind)
        self.trying = None
        if learn(state, self.request, verdict, time.monotonic()) and state not in self.asked_again:
            self.asked_again.append(state)
            return candidate
        # Not the backend's own words here: they would make agents throw away history where it is not to blame.
        reason = verdict.reason if verdict.kind != "too_long" else "was too small for this prompt"
        self.course.leave(candidate, verdict.kind, gone=left.gone)
        learned = (verdict.window, verdict.prompt_tokens)
        tried = Tried(state.name, verdict.kind, reason, left.timeout, *learned, gone=left.gone, lack=verdict.lack)
        self.tried.append(tried)
        log.warning("request %s leaves %s: %s", self.request_id, state.name, reason)
        if verdict.kind == "empty" and not any(self.plan.may_enter(other) for other in self.course.left):
            return forced(candidate, self.request)
        return None

    async def _nothing_left(self) -> None:
        """No candidate has answered: deliver the empty answer if there was one, else say why."""
        if self.spare is None:
            raise self._refusal(time.monotonic())
        candidate, answer, headers = self.spare
        if isinstance(answer, WholeAnswer):
            await self._deliver_whole(candidate, answer, headers)
        elif self.reply is not None:
            await self._deliver_held(candidate, self.reply, answer, headers)
            self._served(candidate, answer.usage)
            await self.reply.finish()

    async def _refuse(self, error: GatewayError) -> None:
        """Tell the client why it gets no answer: as a status if none went out, else in-band, and then the cut."""
        self.outcome = str(error.status) if isinstance(error, PassedOn) else error.code
        self.watch.rest()
        if self.reply is not None and self.reply.committed:
            await self.reply.fail(error)
        elif not self.exchange.started:
            headers = base_headers(self.request_id, self.alias.name if self.alias is not None else "")
            if self.attempts:
                headers.append((b"x-gateway-attempts", b"%d" % self.attempts))
            await send_whole(self.exchange, error.status, error.envelope(), headers + error.headers())

    async def _stopped(self, reason: BaseException) -> None:
        """The request was ended from outside, or its stream broke."""
        self.watch.rest()
        if isinstance(reason, ClientGone):
            self.outcome = "client_gone"
        elif isinstance(reason, ReaderStalled):
            self.outcome = "client_stalled"
        elif self.reply is not None and self.reply.content:
            self.outcome = "stream_interrupted"
            log.warning("request %s was interrupted after content: %s", self.request_id, reason)
            await self.reply.interrupt()
        else:
            message = "The gateway is stopping; send the request again."
            await self._refuse(GatewayError("no_backend_available", message, retry_after=1))

    def _beat(self) -> None:
        assert self.reply is not None
        self.beating = asyncio.ensure_future(self.reply.beat())

    def _left(self) -> None:
        self.watch.interrupt(ClientGone())
