"""One request, top to bottom:

    receive -> plan -> admit -> attempt -> settle

Read `RequestHandler._answer` first: it is the order. The result of each stage is a value that the next stage takes
(stages.py). Decisions are pure functions elsewhere (routing/, inspection/). The effects are here, except those of
two stages: acquiring slots is in admission/slot_acquirer.py; one attempt on one backend, with the commit and the
relaying of its answer, is in attempt.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial

from msgspec import Raw

from gateway.accounting.record import AttemptRecord, RequestRecord
from gateway.admission import access
from gateway.admission.slots import Lease
from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.body import UNREADABLE, read_fields, unreadable
from gateway.domain.endpoints import CHAT, Endpoint
from gateway.domain.request import InferenceRequest, parse, parse_and_search
from gateway.domain.request_timer import ReaderStalled, RequestTimer, Stopping
from gateway.domain.upstream import UpstreamFailure
from gateway.errors import GatewayError, PassedOn, exhausted
from gateway.inspection.error_replies import Verdict
from gateway.large_bodies import SEARCHED, apart, apart_if_large
from gateway.proxy.attempt import Attempt
from gateway.proxy.blame import Blame, earlier_failures
from gateway.proxy.decisions import Decision, Decisions
from gateway.proxy.exchange import ClientGone, Exchange
from gateway.proxy.failures import AttemptFailed, Spare, StreamBroken
from gateway.proxy.feedback import ask_again, correct, learn, unmet, within_reason
from gateway.proxy.inner_exchange import OnBehalf
from gateway.proxy.notice import drop_notices
from gateway.proxy.reply import StreamReply, base_headers, request_id, send_whole
from gateway.proxy.resume import lease_to_resume, resume
from gateway.proxy.services import Services
from gateway.proxy.stages import AdmittedRequest, PlannedRequest, Planner, ReceivedRequest, RequestContext
from gateway.routing.plan import Candidate, with_forced_call
from gateway.routing.refusal import FailedAttempt
from gateway.shortage import shortage_of

log = logging.getLogger("gateway.relay")


class RequestHandler:
    """One inference request. Created when its head was read, run once, then discarded."""

    def __init__(
        self,
        services: Services,
        endpoint: Endpoint,
        exchange: Exchange,
        on_behalf: OnBehalf | None = None,
    ) -> None:
        self.services = services
        # Used to the end, even if routes.yaml is reloaded meanwhile.
        self.snapshot = services.snapshot
        self.states = services.fleet.states  # the backends of this snapshot
        self.exchange = exchange
        self.on_behalf = on_behalf  # set for a request that the gateway makes itself for a client
        self.asked_all = False  # each member's request is counted, not this one
        self.decision: Decision | None = None  # what was decided for requests like this one
        self.undecided: dict[str, Raw] | None = None  # the fields of its body, for which that is still to be decided
        self.timer = RequestTimer(services.pulse, exchange.task(), self._beat)
        self.trace = services.tracer.begin(exchange.headers) if services.tracer is not None else None
        id_ = request_id(exchange.headers.get(b"x-request-id"))
        self.record = RequestRecord(id_, endpoint, self.timer.heard)
        self.context = RequestContext(services, self.snapshot, exchange, self.timer, self.record)
        self.planned: PlannedRequest | None = None  # None = not planned yet, or refused before
        self.blame: Blame | None = None  # None = no attempt has failed
        self.retried: list[BackendState] = []  # backends with a second attempt, with a smaller limit
        self.refusals: dict[str, Verdict] = {}  # by backend, before the request was put in another form
        self.spare: Spare | None = None  # an attempt with a complete but empty answer
        self.heartbeat: asyncio.Task[None] | None = None  # the latest one

    # -- the order ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer the request in any case, and release everything that it holds."""
        self.services.active.add(self)
        try:
            await self._answer()
        except GatewayError as error:
            attempts = self.record.attempts
            if attempts and attempts[-1].unsent:
                self.record.trying = None  # the attempt cost nothing
            await self._refuse(error)
        except asyncio.CancelledError:
            reason = self.timer.take_reason()
            if reason is None:
                raise
            await self._stopped(reason)
        except (ClientGone, Stopping, ReaderStalled, StreamBroken, UpstreamFailure) as reason:
            await self._stopped(reason)
        except Exception as error:
            await self._refuse(self._failed(error))
        finally:
            self.timer.close()
            self.exchange.share.close()
            self.exchange.stop_watching()
            if self.heartbeat is not None:
                self.heartbeat.cancel()
            self.services.active.discard(self)
            if self.blame is not None:
                self.blame.close()
            self._settle()
            self.spare = None
            self.record.release_bytes()

    async def _answer(self) -> None:
        received = await self._receive()
        alias = received.alias
        if alias.ask_all:
            await self._ask_all(received)
            return
        if alias.describe_images and self.services.describer is not None:
            run = lambda *to: RequestHandler(self.services, CHAT, *to).run()  # noqa: E731
            received.request = self.record.request = await self.services.describer.described(
                self.context, received, run
            )
        planned = self.planned = self._plan(received)
        while (lease := planned.lease_at_once() or await self._next_lease(planned)) is not None:
            candidate = lease.candidate
            broken: StreamBroken | None = None
            try:
                await self._attempt(self._admitted(planned, candidate))
                return
            except StreamBroken as failure:
                broken = failure
            except AttemptFailed as failure:
                lease.served = False
                if (again := self._note(planned, candidate, failure)) is not None:
                    planned.failover.retry(again)
            finally:
                lease.release()
            if broken is not None:
                await self._resume(planned, candidate, broken)
                return
            await self._weigh_blame()
        await self._deliver_spare_or_refuse(planned)

    async def _next_lease(self, planned: PlannedRequest) -> Lease | None:
        """The slots of the next candidate of the plan, after a wait where none is free. None: no candidate is left."""
        return await planned.slots.admit(returning=bool(self.record.attempts))

    async def _ask_all(self, received: ReceivedRequest) -> None:
        endpoint, ask_all = self.record.endpoint, self.services.ask_all
        if ask_all is None:
            message = f"Alias '{received.alias.name}' needs the folder gateway/apps/ask_all, which this gateway lacks."
            raise GatewayError("no_backend_available", message)
        asking = ask_all(self.context, received, lambda *to: RequestHandler(self.services, endpoint, *to).run())
        self.asked_all = True
        await asking.run()

    # -- receive --------------------------------------------------------------------------------------------------

    async def _receive(self) -> ReceivedRequest:
        """The client, its request, and the alias that serves it. The record gets each of them at once, because refused
        requests are recorded too."""
        record, exchange, snapshot = self.record, self.exchange, self.snapshot
        inner = self.on_behalf
        client = inner.identity if inner is not None else exchange.caller.identify(snapshot)
        record.client_label, record.client = client.label, client.client
        request = record.request = await self._read(client)
        if client.client is not None and client.client.users is not None and inner is None:
            client = access.user_of(client, exchange.headers, request)
            record.client = client.client
        record.privacy = exchange.caller.privacy(client)  # the conversation that it goes on from may say more
        if self.trace is not None:
            self.trace.headers = exchange.headers
        request.sender = client.name
        if (decision := self.decision) is not None:
            alias = decision.alias
        else:
            alias = inner.alias if inner is not None else access.alias_for(snapshot, client, request)
        record.alias = alias.name
        if alias.notice:
            await apart_if_large(client.name, request.prompt_bytes, partial(drop_notices, request))
        if not alias.ask_all:
            record.charge = self.services.accounts.limits.check(client.client, request, time.monotonic())
        exchange.on_leave(self._left)
        received = ReceivedRequest(client, request, alias, decision or self._decide(client, request, alias))
        if self.services.culprits:
            self._recall_blame(received)
        return received

    async def _read(self, client: access.Identity) -> InferenceRequest:
        (exchange := self.exchange).caller.check_json()
        body = await exchange.read_body(self.snapshot.server.max_body)
        endpoint = self.record.endpoint
        if len(body) > SEARCHED:
            request = await apart(client.name, partial(parse_and_search, endpoint, body, exchange.own))
        else:
            fields = read_fields(body)
            if (alike := self._alike(fields)) is not None:
                return alike
            request = parse(endpoint, fields, exchange.own)
        if not request.other_tools or self.services.tool_dialect is None:
            return request
        dialect = self.exchange = self.context.exchange = self.services.tool_dialect(exchange)
        chat = await dialect.translate(body)
        if len(chat) > SEARCHED:
            return await apart(client.name, partial(parse_and_search, endpoint, chat, None))
        return parse(endpoint, read_fields(chat))

    def _alike(self, fields: dict[str, Raw]) -> InferenceRequest | None:
        """The request, where something was decided for chats like this one. Sets `decision`; where there is none yet,
        keeps the fields of the body so that `_decide` can make it."""
        endpoint, ahead = self.record.endpoint, self.services.decides_ahead
        if ahead == "never" or (endpoint.becomes or endpoint) is not CHAT:
            return None
        if self.exchange.own is not None or self.on_behalf is not None:
            return None
        decisions: Decisions | None = (caller := self.exchange.caller).decisions
        if decisions is None:  # the first request with this head
            decisions = caller.decisions = Decisions()
            if ahead != "first":
                return None
        decision = decisions.find(self.snapshot, fields)
        if decision is None:
            self.undecided = dict(fields)  # reading the request may change them
            return None
        request = decision.request(fields)
        if request is not None:
            self.decision = decision
        return request

    def _decide(self, client: access.Identity, request: InferenceRequest, alias: Alias) -> Decision | None:
        """Decide for chats like this one, if that may be kept."""
        fields, self.undecided = self.undecided, None
        if fields is None or self.snapshot is not self.services.snapshot:  # routes.yaml was edited meanwhile
            return None
        caller = self.exchange.caller
        decisions: Decisions = caller.decisions
        try:
            return decisions.add(self.services, caller, client, alias, request, fields)
        except Exception:  # a defect in what is kept must not cost the answer
            self.services.metrics.failures.note("decisions", "what is kept of a request's decisions")
            return None

    # -- plan -----------------------------------------------------------------------------------------------------

    def _plan(self, received: ReceivedRequest) -> PlannedRequest:
        services, alias = self.services, received.alias.name
        planner = Planner(self.context, received, self.states, services.next_turn(alias))
        return PlannedRequest(self.context, received, planner)

    # -- admit and attempt ----------------------------------------------------------------------------------------

    def _admitted(self, planned: PlannedRequest, candidate: Candidate) -> AdmittedRequest:
        """Raises AttemptFailed where a budget was spent since the plan was made."""
        services, record, request = self.services, self.record, planned.received.request
        spent = services.accounts.reserve(candidate.state, record.client, request, record.reserved)
        if spent is not None:
            raise AttemptFailed(Verdict("budget", spent))
        return AdmittedRequest(
            planned,
            candidate,
            planned.alias,
            planned.queued,
            self.blame.answered if self.blame is not None else None,
            AttemptRecord(candidate.state, request, len(record.attempts) + 1, planned.detour(candidate)),
            has_spare=self.spare is not None,
        )

    async def _attempt(self, admitted: AdmittedRequest) -> None:
        """One try on one backend. Returns when the client has its whole answer. Raises AttemptFailed, StreamBroken."""
        record = self.record
        if record.tried and admitted.goes_on is None:
            self.services.metrics.failovers.inc(admitted.alias.name, record.tried[-1].kind)
        attempt = self._new_attempt(admitted)
        admitted.record.prompt = admitted.planned.begin_prompt(admitted.candidate.state)
        record.trying = admitted.record
        record.attempts.append(admitted.record)
        if self.trace is None:
            await attempt.run()
        else:
            await self.trace.follow(admitted.record, attempt.run)

    def _new_attempt(self, admitted: AdmittedRequest) -> Attempt:
        return Attempt(self.context, admitted)

    async def _resume(self, planned: PlannedRequest, left: Candidate, broken: StreamBroken) -> None:
        """Another backend goes on with the stream that broke at `left`. Only one gets the text: a prompt that kills
        engines must not take all of them. Raises StreamBroken if none can go on, or if that one breaks too."""
        suspected = self.blame is not None and self.blame.suspects
        self._note_break(planned, left.state, broken)
        while (lease := await lease_to_resume(self.context, planned, left, broken, suspected=suspected)) is not None:
            try:
                admitted = self._admitted(planned, lease.candidate)
                return await resume(self.context, planned, admitted, broken, self._attempt)
            except StreamBroken as again:
                self._note_break(planned, lease.candidate.state, again)
                raise
            except AttemptFailed as failure:
                lease.served = False
                with contextlib.suppress(PassedOn):  # the client has had its 200
                    self._note(planned, lease.candidate, failure)
                if not failure.gone:
                    break
            finally:
                lease.release()
        raise broken

    def _note_break(self, planned: PlannedRequest, state: BackendState, broken: StreamBroken) -> None:
        """A stream broke after content."""
        if broken.verdict.kind == "empty":
            return  # the model's own fault, not its server's
        if broken.verdict.kind == "cooldown":
            learn(state, self.context.feedback(planned.received.request), broken.verdict, time.monotonic())
        elif broken.timeout:
            state.evidence.failed(broken.verdict.reason)
        else:
            self._blame_of(planned.received).broke(state, broken.verdict)

    # -- no answer ------------------------------------------------------------------------------------------------

    def _note(self, planned: PlannedRequest, candidate: Candidate, failure: AttemptFailed) -> Candidate | None:
        """Record why an attempt failed. Returns a candidate to try the same backend again, with what it has just
        reported, or with a forced tool call after an empty answer; else None."""
        state, failover, request = candidate.state, planned.failover, planned.received.request
        verdict = within_reason(failure.verdict, state, request, failover.plan.alias)
        self.record.trying, metrics = None, self.services.metrics
        if correct(state, request, failover.plan.alias, verdict):
            metrics.attempts.inc(state.name, "client_error")
            self.refusals.setdefault(state.name, verdict)
            return candidate
        if verdict.kind in ("client", "failed"):  # in the other form it is refused too: the first error counts
            verdict = self.refusals.pop(state.name, verdict)
        if verdict.kind == "client":
            metrics.attempts.inc(state.name, "client_error")
            raise PassedOn(verdict.status, verdict.message, verdict.param, verdict.code)
        metrics.attempts.inc(state.name, verdict.kind)
        if verdict.kind == "failed":
            self._hold_failure(planned, state, failure)
        elif verdict.kind == "misconfigured" and not (state.host is not None and verdict.status == 404):
            self._blame_of(planned.received).refused(state)
        elif verdict.kind == "unserved":
            self._blame_of(planned.received).unserved(state)
        again = ask_again(state, request, failover.plan.alias, verdict)
        if learn(state, self.context.feedback(request), verdict, time.monotonic()):
            self.services.prober.hurry(state, read_models=True)
        if again and state not in self.retried:
            self.retried.append(state)
            return candidate
        # Not the backend's own text for an overflow: agents would discard history although another backend may take it.
        reason = verdict.reason if verdict.kind != "too_long" else "was too small for this prompt"
        failover.mark_failed(candidate, verdict.kind, gone=failure.gone)
        learned = (verdict.window, verdict.prompt_tokens, verdict.least)
        tried = FailedAttempt(
            state.name, verdict.kind, reason, failure.timeout, *learned, gone=failure.gone, lack=verdict.lack
        )
        self.record.tried.append(tried)
        log.warning("request %s leaves %s: %s", self.record.id, state.name, reason)
        if unmet(verdict) and not any(failover.plan.may_enter(other) for other in failover.remaining):
            raise PassedOn(verdict.status, verdict.message, verdict.param, verdict.code)
        if failure.spare is None:
            return None
        self.spare = failure.spare
        failover.has_spare = True
        if any(failover.plan.may_enter(other) for other in failover.remaining):
            return None
        return with_forced_call(candidate, request, time.monotonic())

    def _blame_of(self, received: ReceivedRequest) -> Blame:
        if self.blame is None:
            services, alias, client = self.services, received.alias.name, received.client.name
            several = len(services.snapshot.clients) > 1
            asked = received.request, alias, client
            self.blame = Blame(services.culprits, services.prober.suspicion, *asked, several=several)
        return self.blame

    def _hold_failure(self, planned: PlannedRequest, state: BackendState, failure: AttemptFailed) -> None:
        """A dead engine, a closed port and silence are the backend's; any other failure may be the request's fault."""
        if failure.died:
            state.evidence.stalled(failure.verdict.reason)
        elif failure.timeout and state.health.avoided:
            pass  # its checks have found it already: one incident counts once
        elif failure.timeout or failure.gone:
            state.evidence.failed(failure.verdict.reason)
        else:
            self._blame_of(planned.received).hold(state, failure.verdict)

    def _recall_blame(self, received: ReceivedRequest) -> None:
        """Recall earlier failures of this body. A culprit gets one backend, or none if backends have died of it."""
        asked = received.request, received.alias.name, received.client.name
        if (culprit := earlier_failures(self.services.culprits, *asked, time.monotonic())) is not None:
            self._blame_of(received).recall(culprit)

    async def _weigh_blame(self, *, last: bool = False) -> None:
        """Decide whose fault the failed attempts are. Raises the backend's error if they are this request's fault."""
        if self.blame is not None:
            await self.blame.weigh(last=last)

    async def _deliver_spare_or_refuse(self, planned: PlannedRequest) -> None:
        """No candidate has answered: deliver the empty answer if there was one, else raise the reason."""
        if self.spare is None:
            await self._weigh_blame(last=True)
            raise planned.slots.refusal(time.monotonic())
        await self.spare.deliver()

    async def _refuse(self, error: GatewayError) -> None:
        """Send the error: as a status if none was sent yet, else as an error event, and then cut the stream."""
        record, reply = self.record, self.reply
        record.outcome = str(error.status) if isinstance(error, PassedOn) else error.code
        record.error = error.message
        self.timer.rest()
        self.timer.last_write()  # a client that does not read even this is not waited for
        if reply is not None and reply.committed:
            await reply.fail(error)
        elif not self.exchange.started:
            headers = base_headers(record.id, record.alias)
            if record.attempts:
                headers.append((b"x-gateway-attempts", b"%d" % len(record.attempts)))
            await send_whole(self.exchange, error.status, error.envelope(), headers + error.headers())

    def _failed(self, error: Exception) -> GatewayError:
        """What went wrong inside the gateway: a defect, unless this process lacked something."""
        kind = shortage_of(error)
        if self.record.trying is None and isinstance(error, UNREADABLE):  # only the body has been read so far
            return unreadable(error)
        if kind is None:
            log.error("request %s failed inside the gateway", self.record.id, exc_info=error)
            return GatewayError("internal_error", "The gateway failed on this request; see its log.")
        self.services.on_short(kind)
        log.warning("request %s failed: %s", self.record.id, error)
        return exhausted(kind)

    async def _stopped(self, reason: BaseException) -> None:
        """The request was ended from outside, or its stream broke."""
        self.timer.rest()
        planned, record = self.planned, self.record
        if isinstance(reason, GatewayError):
            await self._refuse(reason)
        elif isinstance(reason, ClientGone):
            record.outcome = "client_gone"
        elif isinstance(reason, ReaderStalled):
            record.outcome = "client_stalled"
        elif planned is not None and planned.reply is not None and planned.reply.content:
            record.outcome = "stream_interrupted"
            log.warning("request %s was interrupted after content: %s", record.id, reason)
            await planned.reply.interrupt()
        else:
            message = "The gateway is stopping; send the request again."
            await self._refuse(GatewayError("no_backend_available", message, retry_after=1))

    # -- settle ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Finish the record, count it, give it to the observers. A failure here harms no answer and no connection."""
        record, planned, services = self.record, self.planned, self.services
        if self.asked_all:
            return
        record.seconds = self.timer.now() - record.began
        if planned is not None:
            record.queued = planned.queued
            record.plan = planned.plan
            record.committed = planned.reply is not None and planned.reply.committed
        used = services.settle(record)
        if record.charge is not None and planned is not None:
            planned.settled(record.charge.tokens, used)
        if self.trace is not None:
            self.trace.end(record)

    # -- from outside ---------------------------------------------------------------------------------------------

    @property
    def reply(self) -> StreamReply | None:
        """The reply to a client that streams; None = the answer is sent as a whole, or there is no plan yet."""
        return self.planned.reply if self.planned is not None else None

    def has_elsewhere(self) -> bool:
        """Is there a backend that can serve it now beside the one that is asked?"""
        return self.planned is not None and self.planned.has_elsewhere(time.monotonic())

    def _beat(self) -> None:
        if self.reply is not None:
            self.heartbeat = self.services.metrics.failures.once("heartbeat", self.reply.beat())

    def _left(self) -> None:
        self.timer.interrupt(ClientGone())
