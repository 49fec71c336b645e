"""The stages of a request: received -> planned -> admitted. Each is a complete value that the next stage takes. An
attempt writes an `AttemptRecord`, the whole request a `RequestRecord` (accounting/record.py).

Most requests need no plan: the first choice (routing/first_choice.py) has a slot free, and the first attempt succeeds.
The plan with its reasons, the waiting set and further attempts are made when a request needs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.accounting.record import AttemptRecord, RequestRecord
from gateway.admission.access import Identity
from gateway.admission.capacity import serves_now
from gateway.admission.failover import FailoverState
from gateway.admission.slot_acquirer import SlotAcquirer
from gateway.admission.slots import Lease
from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.prefill import PromptUnderWay
from gateway.domain.request import InferenceRequest
from gateway.domain.request_timer import RequestTimer
from gateway.engines.ollama.installed_models import window_of
from gateway.engines.ollama.loading import begin_load
from gateway.engines.outgoing import JSON, outgoing_headers
from gateway.proxy.decisions import Decision
from gateway.proxy.exchange import Exchange
from gateway.proxy.feedback import Feedback
from gateway.proxy.notice import load_words, may_notice
from gateway.proxy.reply import LOADING_TOLD, StreamReply, base_headers
from gateway.proxy.services import Services
from gateway.routing.balance import missing_tokens
from gateway.routing.conversation_key import affinity_key, sent_on, session_id
from gateway.routing.first_choice import first_choice
from gateway.routing.needs import Resort, resort_of
from gateway.routing.placements import Session
from gateway.routing.plan import Candidate, Plan, loads_first, make_plan, with_forced_call
from gateway.routing.resume import Continuation


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
    """The body was read, and the client may use the alias. `decision`: what was decided for requests like this one;
    None: everything is decided anew."""

    client: Identity
    request: InferenceRequest
    alias: Alias
    decision: Decision | None = None


class Planner:
    """Makes the plans of one request. `states`: the backends when it came; `turn`: for round robin."""

    __slots__ = ("_context", "_received", "_states", "_turn", "session")

    def __init__(
        self, context: RequestContext, received: ReceivedRequest, states: Mapping[str, BackendState], turn: int
    ) -> None:
        self._context = context
        self._received = received
        self._states = states
        self._turn = turn
        self.session: Session | None = None  # None: no backend was chosen by it

    def first_choice(self) -> Candidate | None:
        """The backend that comes first in the plan, where that needs no plan; None = it has to be made."""
        context, received, services = self._context, self._received, self._context.services
        client, request, alias = received.client, received.request, received.alias
        if services.admission.scheduler.sharing is not None or context.snapshot is not services.snapshot:
            return None
        if services.accounts.over_budget(context.snapshot, client.client) is not None:
            return None
        now, turn, decision = time.monotonic(), self._turn, received.decision
        if decision is not None and (usable := decision.usable(request, now)) is not None:
            return usable[0] if len(usable) == 1 else decision.first(usable, turn, self.place, now)
        return first_choice(
            alias,
            self._states,
            request,
            now,
            local_only=context.record.privacy.local_only,
            turn=turn,
            session=self.place,
            client=client.client,
        )

    def place(self) -> Session:
        """What is known of its prompt, as it was when the request came."""
        if self.session is None:
            received, placements = self._received, self._context.services.placements
            self.session = placements.find(received.request, self._affinity_key(), received.client.name)
            client = received.client.client
            self.session.yields = ((client and client.priority) or received.alias.priority) == "batch"
        return self.session

    def _affinity_key(self) -> bytes:
        received = self._received
        return affinity_key(received.request, self._session(), received.client.name, received.alias.name)

    def _session(self) -> bytes | None:
        exchange = self._context.exchange
        caller = exchange.caller
        return session_id(caller.headers, caller.session, exchange.session, self._received.request.fields)

    def session_sent(self, name: str) -> str | None:
        """The session's id for a server that reads it by this name; None = the client sends none, and a field (which
        has no "-") needs none."""
        session = self._session()
        if session is None and "-" not in name:
            return None
        return sent_on(session, self._affinity_key())

    def __call__(self, resort: Resort | None, outcomes: Mapping[str, str] | None) -> Plan:
        """A plan of the fleet as it is now. `outcomes`: backend name -> how its attempt ended."""
        client, request, alias = self._received.client, self._received.request, self._received.alias
        context, states = self._context, self._states
        services = context.services
        starts = services.admission.starts
        if context.snapshot is not services.snapshot:
            alias, states = self._alias_now(alias)
        plan = make_plan(
            alias,
            states,
            request,
            time.monotonic(),
            local_only=context.record.privacy.local_only,
            turn=self._turn,
            session=self.place,
            client=client.client,
            resort=resort,
            over_budget=services.accounts.over_budget(context.snapshot, client.client),
            outcomes=outcomes,
            refuses_start=None if starts is None else starts.decision,
        )
        for state in plan.loads:
            begin_load(state, window_of(state), kept=True)
        return plan

    def _alias_now(self, alias: Alias) -> tuple[Alias, Mapping[str, BackendState]]:
        """routes.yaml was edited since the request arrived. The request keeps its alias, with the backends that have
        those names now; backends that were removed get no more attempts. If all were removed, the alias as it is now
        counts; but not for one choice of an `ask_all`, which is its backend's or nobody's."""
        services = self._context.services
        fleet = services.fleet.states
        whole = self._context.snapshot.aliases.get(alias.name, alias)
        is_choice = bool(whole.ask_all) and not alias.ask_all
        if not is_choice and fleet.keys().isdisjoint(name for step in alias.steps for name in step):
            alias = services.snapshot.aliases.get(alias.name, alias)
        return alias, {**self._states, **fleet}


class PlannedRequest:
    """The backend that is asked first is known, or all candidates are. `failover`: the candidates that are left;
    `slots` acquires the slots of the next one. Both are made when they are needed: where the first attempt gets a slot
    at once, and succeeds, neither is."""

    __slots__ = (
        "_context",
        "_failover",
        "_planner",
        "_slots",
        "choice",
        "received",
        "reply",
        "tried_first",
    )

    def __init__(self, context: RequestContext, received: ReceivedRequest, planner: Planner) -> None:
        self.received = received
        self.choice = planner.first_choice()  # None = there is none without a plan, or it was taken
        self.tried_first: Candidate | None = None  # the choice, once it has its slots
        self._context = context
        self._planner = planner
        self._failover: FailoverState | None = None
        self._slots: SlotAcquirer | None = None
        # The reply to a client that streams; None = the answer is sent as a whole.
        self.reply = stream_reply(context, received, self.first) if received.request.stream else None
        if received.alias.notice and self.reply is not None and may_notice(received.alias, received.request):
            self.reply.tell_waits(self._waits)

    def begin_prompt(self, state: BackendState) -> PromptUnderWay | None:
        """This backend computes the prompt now; None where there is never a choice between several."""
        if (session := self._planner.session) is None:
            alias = self.alias
            if alias.balance != "affinity" or all(len(step) < 2 or state.name not in step for step in alias.steps):
                return None
            session = self._planner.place()
        if not session.yields:
            self._context.services.placements.put(session, state.name)
        return state.prefill.begin(missing_tokens(state, session), time.monotonic())

    @property
    def first(self) -> BackendState | None:
        """The backend that is asked first, or that would be if it could serve."""
        if self.choice is not None:
            return self.choice.state
        plan = self.failover.plan
        first = plan.candidates or plan.skipped
        return first[0].state if first else None

    def session_sent(self, name: str) -> str | None:
        """As `Planner.session_sent`."""
        return self._planner.session_sent(name)

    @property
    def failover(self) -> FailoverState:
        if self._failover is None:
            received = self.received
            resort = resort_of(received.alias, received.client.client) if received.request.tools else None
            self._failover = FailoverState(self._planner, resort)
            if self.tried_first is not None:
                self._failover.mark_begun(self.tried_first)
        return self._failover

    @property
    def plan(self) -> Plan | None:
        """The latest plan; None: none was needed."""
        return None if self._failover is None else self._failover.plan

    def _waits(self) -> str:
        """What the request waits for now, in words for a person; "" where an answer is being computed."""
        asked, now = self._context.record.trying, time.monotonic()
        if asked is not None:
            return load_words(asked.state, now)
        return "" if self._slots is None else self._slots.waits(now)

    @property
    def slots(self) -> SlotAcquirer:
        if self._slots is None:
            context, received = self._context, self.received
            asked = received.request, received.alias, received.client, context.record.id
            admission, record = context.services.admission, context.record
            self._slots = SlotAcquirer(admission, self.failover, *asked, record.began, record.tried)
        return self._slots

    @property
    def alias(self) -> Alias:
        """Of the latest plan: routes.yaml may have been edited since the request came."""
        return self.received.alias if self._failover is None else self._failover.plan.alias

    @property
    def queued(self) -> float:
        """Seconds that it has waited for slots."""
        return 0.0 if self._slots is None else self._slots.queued

    def lease_at_once(self) -> Lease | None:
        """The slots of the first choice, where they are free."""
        choice, self.choice = self.choice, None
        if choice is None:
            return None
        client = self.received.client
        if client.client is not None and client.client.parent is not None:
            return None  # two limits: they are counted where requests may wait for them
        most = client.client.max_inflight if client.client is not None else None
        lease = self._context.services.admission.try_acquire(choice, self.received.request, client.name, most)
        if lease is not None:
            self.tried_first = choice
        return lease

    def detour(self, candidate: Candidate) -> tuple[str, str] | None:
        """As `Plan.detour`; the first choice is none."""
        return None if self._failover is None else self._failover.plan.detour(candidate)

    def is_last(self, candidate: Candidate) -> bool:
        """Is no other attempt left behind this one?"""
        again = with_forced_call(candidate, self.received.request, time.monotonic())
        return not (self.failover.remaining or again)

    def has_elsewhere(self, now: float) -> bool:
        """Can another candidate serve now, if the attempt under way fails?"""
        failover, asked = self.failover, self._context.record.trying
        name = "" if asked is None else asked.state.name
        return any(failover.plan.may_enter(c, name) and serves_now(c.state, now) for c in failover.remaining)

    def settled(self, estimate: int, tokens: int) -> None:
        """As `SlotAcquirer.settled`."""
        if self._slots is not None:
            self._slots.settled(estimate, tokens)


@dataclass(slots=True, eq=False)
class AdmittedRequest:
    """The request holds the slots of one backend, for one attempt."""

    planned: PlannedRequest
    candidate: Candidate
    alias: Alias  # of the plan that chose the candidate
    queued: float  # seconds that the request has waited for slots
    on_answer: Callable[[], None] | None  # called when the attempt has content for the client
    record: AttemptRecord
    has_spare: bool = False  # an attempt before had an empty answer, which is kept
    goes_on: Continuation | None = None  # the attempt goes on with a stream that broke at another backend

    @property
    def final(self) -> bool:
        """Is an empty answer delivered too?"""
        return self.has_spare or self.goes_on is not None or self.planned.is_last(self.candidate)


def stream_reply(context: RequestContext, received: ReceivedRequest, first: BackendState | None) -> StreamReply:
    """The reply to a client that streams. Its first heartbeat is due after the `hold` of the backend that is asked
    `first`."""
    request, record = received.request, context.record
    if first is not None:
        hold = first.backend.timeouts.hold
        context.timer.beat_at = record.began + (min(hold, LOADING_TOLD) if loads_first(first) else hold)
    base = base_headers(record.id, received.alias.name)
    reply = StreamReply(context.exchange, context.timer, request.endpoint, request.model, record.id, base)
    if first is not None and loads_first(first):  # those who wait for its slots are told, too
        reply.loading = lambda: first.loading(time.monotonic())
    return reply
