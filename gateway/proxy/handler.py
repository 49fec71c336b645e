"""One request, top to bottom:

    identify -> parse -> plan -> admit -> attempt -> commit -> relay -> settle

Read `Relay._answer` first: it is the order. Decisions are pure functions elsewhere (routing/, streaming.py,
upstream/answers.py); the effects are here, but for those of two stages: how slots are got (admission/entrance.py), and
one attempt on one backend with the commit and the relaying of its answer (attempt.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from math import inf

from gateway.accounting.accounts import Reservation
from gateway.accounting.limits import Charge
from gateway.accounting.settle import settle
from gateway.admission import access
from gateway.admission.failover import Course
from gateway.admission.origins import check_json
from gateway.admission.slot_acquirer import Entrance
from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.request import UNREADABLE, Endpoint, InferenceRequest, parse, unreadable
from gateway.domain.request_timer import ReaderStalled, Stopping, Watch
from gateway.domain.upstream import UpstreamFailure
from gateway.errors import GatewayError, PassedOn, exhausted
from gateway.inspection.error_replies import Verdict
from gateway.proxy.attempt import Attempt, Broken, Left
from gateway.proxy.blame import Blame, shunned
from gateway.proxy.exchange import ClientGone, Exchange
from gateway.proxy.feedback import Teacher, ask_again, learn
from gateway.proxy.reply import StreamReply, base_headers, request_id, send_whole
from gateway.routing.balance import affinity_key
from gateway.routing.plan import Candidate, Plan, Resort, forced, make_plan, resort_of
from gateway.routing.refusal import Tried
from gateway.routing.tasks import task_alias
from gateway.runtime.gateway import Gateway
from gateway.shortage import shortage_of

log = logging.getLogger("gateway.relay")


class Relay:
    """One inference request. Made, run once, thrown away."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint, exchange: Exchange) -> None:
        self.gateway = gateway
        self.snapshot = gateway.snapshot  # this one to the end, whatever is loaded meanwhile
        self.states = gateway.fleet.states  # the backends of that
        self.endpoint = endpoint  # that the client asked; what its request became is `request.endpoint`
        self.exchange = exchange
        self.watch = Watch(gateway.pulse, exchange.task(), self._beat)
        self.began = self.watch.now()
        self.trace = gateway.tracing.begin(exchange.headers) if gateway.tracing is not None else None
        self.request_id = request_id(exchange.headers.get(b"x-request-id"))
        self.client = access.NOBODY
        self.request: InferenceRequest
        self.alias: Alias | None = None
        self.turn = 0  # what round robin turns on
        self.course: Course
        self.entrance: Entrance | None = None  # from its plan on
        self.reply: StreamReply | None = None  # of a stream
        self.attempts: list[Attempt] = []
        self.tried: list[Tried] = []
        self.asked_again: list[BackendState] = []  # once more with a smaller limit
        self.blame: Blame | None = None  # once an attempt failed
        self.spare: Attempt | None = None  # has a complete but empty answer
        self.beating: asyncio.Task[None] | None = None
        # what `settle` records, with what the attempts found
        self.trying: BackendState | None = None  # an attempt that has no outcome yet
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
            if self.attempts and self.attempts[-1].unsent:
                self.trying = None  # it has cost nothing there
            await self._refuse(error)
        except asyncio.CancelledError:
            reason = self.watch.take()
            if reason is None:
                raise
            await self._stopped(reason)
        except (ClientGone, Stopping, ReaderStalled, Broken, UpstreamFailure) as reason:
            await self._stopped(reason)
        except Exception as error:
            await self._refuse(self._failed(error))
        finally:
            self.watch.close()
            self.exchange.share.close()
            self.exchange.stop_watching()
            if self.beating is not None:
                self.beating.cancel()
            self.gateway.active.discard(self)
            if self.blame is not None:
                self.blame.close()
            self._settle()
            self._let_go()

    async def _answer(self) -> None:
        self.client = access.identify(self.snapshot, self.exchange.headers, self.exchange.peer)
        check_json(self.exchange.headers)
        body = await self.exchange.read_body(self.snapshot.server.max_body)
        self.request = parse(self.endpoint, body)
        self.request.sender = self.client.name
        alias = self.alias = self._find_alias()
        self.charge = self.gateway.accounts.limits.check(self.client.client, self.request, time.monotonic())
        self.exchange.on_leave(self._left)
        self._recall_blame(alias)
        self._plan(alias)
        entrance = self.entrance = self._entrance(alias)
        while (lease := await entrance.admit(returning=bool(self.attempts))) is not None:
            candidate = lease.candidate
            try:
                await self._attempt(self.course.plan.alias, candidate, entrance.queued)
                return
            except Left as left:
                lease.served = False
                if (again := self._note(candidate, left)) is not None:
                    self.course.once_more(again)
            finally:
                lease.release()
            await self._weigh_blame()
        await self._nothing_left(entrance)

    # -- plan -----------------------------------------------------------------------------------------------------

    def _find_alias(self) -> Alias:
        """The alias the client named; for the side calls of a client with `tasks` the one that answers those."""
        alias = access.find_alias(self.snapshot, self.client, self.request.model)
        if self.client.client is not None and self.client.client.tasks is not None:
            name = task_alias(self.request, self.client.client)
            alias = self.snapshot.resolve(name) or alias if name is not None else alias
        return alias

    def _plan(self, alias: Alias) -> None:
        self.turn = self.gateway.next_turn(alias.name)
        self.course = Course(self._made_plan, resort_of(alias, self.client.client) if self.request.tools else None)
        if self.request.stream:
            base = base_headers(self.request_id, alias.name)
            self.reply = StreamReply(
                self.exchange, self.watch, self.request.endpoint, self.request.model, self.request_id, base
            )
            plan = self.course.plan
            first = plan.candidates or plan.skipped
            if first:
                self.watch.beat_at = self.began + first[0].state.backend.timeouts.hold

    def _made_plan(self, resort: Resort | None = None, met: Mapping[str, str] | None = None) -> Plan:
        headers, alias, states = self.exchange.headers, self.alias, self.states
        assert alias is not None
        if self.snapshot is not self.gateway.snapshot:
            alias, states = self._as_it_is_now(alias)
        return make_plan(
            alias,
            states,
            self.request,
            time.monotonic(),
            local_only=self.client.local_only or access.asks_local_only(headers),
            turn=self.turn,
            key=lambda: affinity_key(self.request, headers, self.client.name, alias.name),
            client=self.client.client,
            resort=resort,
            broke=self.gateway.accounts.broke(self.snapshot, self.client.client),
            met=met,
        )

    def _as_it_is_now(self, alias: Alias) -> tuple[Alias, Mapping[str, BackendState]]:
        """routes.yaml was edited since the request came. Its alias stays what it was, with the backends that bear those
        names now, and those taken out, which nobody may ask any more. Where all of them were, it is as it is now."""
        fleet = self.gateway.fleet.states
        if fleet.keys().isdisjoint(name for step in alias.steps for name in step):
            alias = self.gateway.snapshot.aliases.get(alias.name, alias)
        return alias, {**self.states, **fleet}

    # -- admit and attempt ----------------------------------------------------------------------------------------

    def _entrance(self, alias: Alias) -> Entrance:
        return Entrance(
            self.gateway.admission,
            self.course,
            self.request,
            alias,
            self.client,
            self.request_id,
            self.watch,
            self.began,
            self.tried,
        )

    async def _attempt(self, alias: Alias, candidate: Candidate, queued: float) -> None:
        """One try on one backend. Returns when the client has its whole answer; raises Left or Broken."""
        spent = self.gateway.accounts.enter(candidate.state, self.client.client, self.request, self.reserved)
        if spent is not None:  # since the plan was made
            raise Left(Verdict("budget", spent))
        if self.tried:
            self.gateway.metrics.failovers.inc(alias.name, self.tried[-1].kind)
        self.trying = candidate.state
        attempt = Attempt(
            candidate,
            len(self.attempts) + 1,
            self.request,
            alias,
            self.request_id,
            self.exchange,
            self.watch,
            self.reply,
            self.gateway.metrics,
            began=self.began,
            queued=queued,
            detour=self.course.plan.detour(candidate),
            max_body=self.snapshot.server.max_body,
            teacher=self._teacher(),
            on_short=self.gateway.short_of,
            final=self.spare is not None or (not self.course.left and self._forced(candidate) is None),
            on_answer=self.blame.answered if self.blame is not None else None,
        )
        self.attempts.append(attempt)
        if self.trace is None:
            await attempt.run()
        else:
            await self.trace.follow(attempt)

    # -- no answer ------------------------------------------------------------------------------------------------

    def _note(self, candidate: Candidate, left: Left) -> Candidate | None:
        """Record why a backend was left. Not None = try the same one again, now with what it has just told, or made to
        call a tool after a turn in which it said nothing."""
        state, verdict, course = candidate.state, left.verdict, self.course
        self.trying = None
        if verdict.kind == "client":
            self.gateway.metrics.attempts.inc(state.name, "client_error")
            raise PassedOn(verdict.status, verdict.message, verdict.param, verdict.code)
        self.gateway.metrics.attempts.inc(state.name, verdict.kind)
        if verdict.kind == "failed":
            self._hold_failure(candidate, verdict, hard=left.timeout or left.gone)
        elif verdict.kind == "misconfigured":
            self._blame().refused(state)
        elif verdict.kind == "unserved":
            self._blame().unserved(state)
        again = ask_again(state, self.request, self.attempts[-1].alias, verdict)
        if learn(state, self._teacher(), verdict, time.monotonic()):
            self.gateway.prober.hurry(state, read_models=True)
        if again and state not in self.asked_again:
            self.asked_again.append(state)
            return candidate
        # Not the backend's own words here: they would make agents throw away history where it is not to blame.
        reason = verdict.reason if verdict.kind != "too_long" else "was too small for this prompt"
        course.leave(candidate, verdict.kind, gone=left.gone)
        learned = (verdict.window, verdict.prompt_tokens, verdict.least)
        tried = Tried(state.name, verdict.kind, reason, left.timeout, *learned, gone=left.gone, lack=verdict.lack)
        self.tried.append(tried)
        log.warning("request %s leaves %s: %s", self.request_id, state.name, reason)
        if verdict.kind != "empty":
            return None
        self.spare = self.attempts[-1]
        course.has_spare = True
        return None if any(course.plan.may_enter(other) for other in course.left) else self._forced(candidate)

    def _forced(self, candidate: Candidate) -> Candidate | None:
        return forced(candidate, self.request, time.monotonic())

    def _teacher(self) -> Teacher:
        return Teacher(self.request, self.request_id, told_apart=len(self.snapshot.clients) > 1)

    def _blame(self) -> Blame:
        if self.blame is None:
            gateway, alias = self.gateway, self.alias.name if self.alias is not None else ""
            self.blame = Blame(gateway.culprits, gateway.prober.suspicion, self.request, alias, self.client.name)
        return self.blame

    def _hold_failure(self, candidate: Candidate, verdict: Verdict, *, hard: bool) -> None:
        """`hard`: nobody listens there, or it is silent. Anything else may be the request's own fault."""
        if hard:
            candidate.state.evidence.failed(verdict.reason)
        else:
            self._blame().hold(candidate.state, verdict)

    def _recall_blame(self, alias: Alias) -> None:
        """Has this body failed before? A culprit goes to one backend, and to none when backends have died of it."""
        now = time.monotonic()
        culprit = self.gateway.culprits.find(self.request, alias.name, self.client.name, now)
        if culprit is None:
            return
        if culprit.shunned_until > now:
            raise shunned(culprit.shunned_until - now)
        self._blame().recall(culprit)

    async def _weigh_blame(self, *, last: bool = False) -> None:
        """Whose fault is it that attempts failed? Raises the backend's error where it is this request's."""
        if self.blame is not None:
            self.watch.expect(None)
            self.watch.total_at = inf
            await self.blame.weigh(last=last)

    async def _nothing_left(self, entrance: Entrance) -> None:
        """No candidate has answered: deliver the empty answer if there was one, else say why."""
        if self.spare is None:
            await self._weigh_blame(last=True)
            raise entrance.refusal(time.monotonic())
        await self.spare.deliver()

    async def _refuse(self, error: GatewayError) -> None:
        """Tell the client why it gets no answer: as a status if none went out, else in-band, and then the cut."""
        self.outcome = str(error.status) if isinstance(error, PassedOn) else error.code
        self.watch.rest()
        self.watch.last_write()  # who does not even take a refusal is not waited for
        if self.reply is not None and self.reply.committed:
            await self.reply.fail(error)
        elif not self.exchange.started:
            headers = base_headers(self.request_id, self.alias.name if self.alias is not None else "")
            if self.attempts:
                headers.append((b"x-gateway-attempts", b"%d" % len(self.attempts)))
            await send_whole(self.exchange, error.status, error.envelope(), headers + error.headers())

    def _failed(self, error: Exception) -> GatewayError:
        """What went wrong inside the gateway: a defect, unless this process lacked something."""
        kind = shortage_of(error)
        if self.trying is None and isinstance(error, UNREADABLE):  # nothing else was read yet than the body
            return unreadable(error)
        if kind is None:
            log.error("request %s failed inside the gateway", self.request_id, exc_info=error)
            return GatewayError("internal_error", "The gateway failed on this request; see its log.")
        self.gateway.short_of(kind)
        log.warning("request %s failed: %s", self.request_id, error)
        return exhausted(kind)

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
            if isinstance(reason, Broken):
                state = self.attempts[-1].candidate.state
                if reason.timeout:
                    state.evidence.failed(reason.verdict.reason)
                else:
                    self._blame().broke(state, reason.verdict)
            await self.reply.interrupt()
        else:
            message = "The gateway is stopping; send the request again."
            await self._refuse(GatewayError("no_backend_available", message, retry_after=1))

    def _settle(self) -> None:
        """What cannot be counted must not cost the client its answer, nor the gateway its connection."""
        try:
            settle(self)
        except Exception:
            self.gateway.metrics.failures.note("settle", f"counting request {self.request_id}")

    def _let_go(self) -> None:
        """Its bytes are given up now: the parts of a request refer to each other, and would wait for a collection."""
        self.attempts.clear()
        self.spare = None
        if "request" in vars(self):
            self.request.fields.clear()

    # -- from outside ---------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        assert self.reply is not None
        self.beating = self.gateway.metrics.failures.once("heartbeat", self.reply.beat())

    def _left(self) -> None:
        self.watch.interrupt(ClientGone())
