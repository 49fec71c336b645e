"""The plan of one request: which backends may serve it, in which order, and why the others may not.

A pure function of the snapshot's alias, the fleet's state, the request and the time: it writes to none of them. A step
is left only when no member of it can serve; a cloud step is entered only for the reasons its alias allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.config.snapshot import Alias, Client
from gateway.domain.backend import BackendState
from gateway.domain.health_state import StartDecision
from gateway.domain.request import InferenceRequest
from gateway.domain.tokens import room_needed
from gateway.routing.balance import order
from gateway.routing.needs import (
    FORCED,
    NO_ADAPTATION,
    NO_NEEDS,
    Adaptation,
    Lack,
    Needs,
    Resort,
    adapt,
    can_switch_thinking,
    needs_of,
    rescued,
)
from gateway.routing.placements import Session, no_session
from gateway.routing.pooled import chain_of
from gateway.routing.why_not import ON_REQUEST, STARTING, STARTS, SkipReason, too_long, unavailable, why_not
from gateway.routing.window import fits_window

LATER = "later"  # kind of a backend behind one that starts, where the alias waits for that one (while_starting)
OUTSIDE = "mode"  # parked by the mode in force: neither a reason to enter a cloud nor one against it

# Why a backend is not used -> the value of `cloud_when` (and of x-gateway-routed) that it counts as.
KINDS = {
    "down": "down",
    "warming": "down",
    "misconfigured": "down",
    "parked": "down",
    "outside": OUTSIDE,
    ON_REQUEST: "busy",  # a start is waited for as a slot is: it is no failure, and opens no cloud that `down` opens
    STARTING: "busy",
    LATER: "busy",
    "draining": "down",
    "failed": "down",
    "empty": "empty",  # never a reason to leave the LAN
    "cooldown": "busy",
    "busy": "busy",  # no slot was free, and the request was allowed to go on (on_busy, cloud_when)
    "incapable": "incapable",
    "unserved": "incapable",
    "disobeyed": "incapable",  # a call was required, and the answer had none
    "too_long": "too_long",
    "local_only": "local_only",
    "budget": "budget",  # never a reason to leave the LAN
}
TEMPORARY = frozenset({"down", "warming", "cooldown", STARTING})

# Returns which budget forbids a backend now, as text for people; None if no budget does.
OverBudget = Callable[[BackendState], str | None]

# Returns whether a request of this client (None: `clients` is not used) and alias has a parked backend started now.
DecidesStart = Callable[[BackendState, Client | None, Alias], StartDecision]
AWAITED = 30.0  # seconds of a load that a request waits for, although another backend is ready


class Candidate(NamedTuple):
    """A backend to try; `step` counts from 0. `adapt`: how the request is changed for it. `doubtful`: it may well
    not make the call that the request requires, so it comes after the other local backends."""

    state: BackendState
    step: int
    adapt: Adaptation = NO_ADAPTATION
    doubtful: bool = False


class SkippedBackend(NamedTuple):
    """A backend that is not used, and why (`SkipReason`)."""

    state: BackendState
    step: int
    kind: str
    reason: str
    lacks: tuple[Lack, ...] = ()
    wait: float | None = None


@dataclass(slots=True)
class Plan:
    """`candidates`: in the order to try them. `outcomes`: backend name -> kind of failure, filled by the attempts.
    `loads`: the backends that come after another one because their model has to be loaded, and is now. `startable`: the
    parked backends that this request may have started, in the alias's order; empty while one of its
    backends starts."""

    alias: Alias
    candidates: list[Candidate] = field(default_factory=list)
    skipped: list[SkippedBackend] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    startable: Sequence[SkippedBackend] = ()
    loads: Sequence[BackendState] = ()

    def may_enter(self, candidate: Candidate, failing: str = "") -> bool:
        """May this candidate be tried, if the attempt at the backend `failing` fails? A local one always. A cloud only
        if each local backend before it is not used for a reason that `cloud_when` allows. Backends outside the mode in
        force do not count, but if there are only such ones, the mode is no reason to leave the LAN."""
        if not candidate.state.backend.cloud:
            return True
        reasons = [KINDS[s.kind] for s in self.skipped if s.step <= candidate.step and not s.state.backend.cloud]
        for earlier in self.candidates:
            if earlier is candidate:
                break
            if not earlier.state.backend.cloud:
                name = earlier.state.name
                reasons.append(KINDS.get("failed" if name == failing else self.outcomes.get(name, ""), "busy"))
        expected = [reason for reason in reasons if reason != OUTSIDE]
        return bool(expected or not reasons) and all(reason in self.alias.cloud_when for reason in expected)

    def detour(self, candidate: Candidate) -> tuple[str, str] | None:
        """Why a later step serves: ("fallback", reason) when the first step is unhealthy or has just failed,
        ("routed", too_long | incapable | busy) when the cause is this request. None on the first step. Backends
        outside the mode in force do not count: the first step is the first one with another."""
        if candidate.step == 0:
            return None
        home = self._first_step()
        if candidate.step <= home and not candidate.state.backend.cloud:
            return None
        kinds = [s.kind for s in self.skipped if s.step == home and KINDS[s.kind] != OUTSIDE]
        first = [c for c in self.candidates if c.step == home]
        kinds += [self.outcomes[c.state.name] for c in first if c.state.name in self.outcomes]
        kinds += ["incapable" for c in first if c.doubtful and c.state.name not in self.outcomes]
        unhealthy = [k for k in kinds if KINDS[k] in ("down", "empty", "budget")]
        if unhealthy or not kinds:
            return ("fallback", unhealthy[0] if unhealthy else "down")
        reason = KINDS[kinds[0]]
        return ("routed", "incapable" if reason == "local_only" else reason)

    def _first_step(self) -> int:
        """The first step with a backend that the mode in force does not park."""
        expected = [c.step for c in self.candidates]
        expected += [s.step for s in self.skipped if KINDS[s.kind] != OUTSIDE]
        return min(expected, default=0)


def make_plan(
    alias: Alias,
    states: Mapping[str, BackendState],
    request: InferenceRequest,
    now: float,
    *,
    local_only: bool = False,
    turn: int = 0,
    session: Callable[[], Session] = no_session,
    client: Client | None = None,
    resort: Resort | None = None,
    outcomes: Mapping[str, str] | None = None,
    over_budget: OverBudget | None = None,
    refuses_start: DecidesStart | None = None,
) -> Plan:
    """Candidates and skips for one request, `now` in the fleet's monotonic seconds.

    With `resort` the candidates are the backends that could not serve because of tools alone, asked in that mode.
    `outcomes`: how the attempts of the previous plan ended. Without `refuses_start` no backend is started.
    """
    plan = Plan(alias, outcomes=dict(outcomes) if outcomes else {})
    needs = needs_of(request, alias, client)
    room = room_needed(request, alias.min_max_tokens)
    has_starts = False
    chain = chain_of(alias, states, request, now) if request.endpoint.pools else None
    for index, step in enumerate(alias.steps):
        usable: list[BackendState] = []
        for name in step:
            state = states[name]
            why = why_not(state, request, needs, room, now, local_only=local_only)
            if chain is not None and (why is None or why.kind in STARTS):
                apart = chain.why_not(state)
                why = why if apart is None else SkipReason("incapable", apart)
            why = why or _spent(state, over_budget)
            if resort is not None:
                why = _why_not_in_mode(why, state, request, room, now, resort, plan.outcomes)
                why = why or _spent(state, over_budget)
            if why is None:
                usable.append(state)
            else:
                if why.kind in STARTS:
                    has_starts = True
                    decision = refuses_start(state, client, alias) if why.kind == ON_REQUEST and refuses_start else None
                    if decision is not None and decision.refusal:
                        why = SkipReason("parked", f"is parked: {decision.refusal}", wait=decision.wait)
                plan.skipped.append(SkippedBackend(state, index, *why))
        ordered: Sequence[BackendState] = order(usable, alias.balance, turn, session, now)
        if needs is NO_NEEDS:
            for state in ordered:
                plan.candidates.append(Candidate(state, index))
        else:
            plan.candidates.extend(adapted(ordered, index, needs, now, resort))
    if any(candidate.state.health.avoided for candidate in plan.candidates):
        plan.candidates.sort(key=lambda c: 2 if c.state.backend.cloud else 1 if c.state.health.avoided else 0)
    if needs.tools == "auto" and any(candidate.doubtful for candidate in plan.candidates):
        plan.candidates.sort(key=lambda c: 2 if c.state.backend.cloud else 1 if c.doubtful else 0)
    if any(loads_first(candidate.state) for candidate in plan.candidates):
        _put_loads_behind(plan, now)
    if request.own is not None and request.own.left_out:  # who runs them comes first, for others they are left out
        plan.candidates.sort(key=lambda c: not c.state.capabilities(now).hosted)
    if has_starts and refuses_start is not None:
        _plan_starts(plan)
    return plan


def loads_first(state: BackendState) -> bool:
    """Must it load its model before it can serve, as far as its list of loaded models tells?"""
    return state.reported.loaded is False and state.traits.probe is not None and state.traits.probe.held is not None


def _put_loads_behind(plan: Plan, now: float) -> None:
    """Those whose load is not worth waiting for come behind the last local candidate that is ready now."""
    wanted, outcomes, found = plan.alias.failover.when_loading, plan.outcomes, plan.candidates
    ready = [
        index
        for index, c in enumerate(found)
        if not (loads_first(c.state) or c.state.backend.cloud or c.doubtful or c.state.name in outcomes)
    ]
    last = ready[-1] + 1 if ready else 0
    later = [
        c
        for c in found[:last]
        if loads_first(c.state)
        and (wanted == "next" or (wanted == "auto" and (c.state.load_left(now) or 0.0) > AWAITED))
    ]
    plan.candidates = [*(c for c in found[:last] if c not in later), *later, *found[last:]]
    plan.loads = [c.state for c in later]
    plan.outcomes |= {state.name: "busy" for state in plan.loads if state.name not in outcomes}


def _plan_starts(plan: Plan) -> None:
    """Name the backends that the request may have started. With `while_starting: wait` it gets nothing behind the first
    step whose backend starts for it."""
    starts = [skip for skip in plan.skipped if skip.kind in STARTS]
    if not any(skip.kind == STARTING for skip in starts):
        plan.startable = starts
    if plan.alias.while_starting == "next" or not starts:
        return
    awaited = min(skip.step for skip in starts)
    if any(candidate.step <= awaited for candidate in plan.candidates):
        return
    names = ", ".join(skip.state.name for skip in starts if skip.step == awaited)
    reason = f"comes after {names}, which starts (while_starting: wait)"
    plan.skipped += [SkippedBackend(c.state, c.step, LATER, reason) for c in plan.candidates]
    plan.candidates = []


def adapted(
    ordered: Sequence[BackendState], step: int, needs: Needs, now: float, mode: Resort | None
) -> list[Candidate]:
    """The candidates of one step; those that meet a preference come first."""
    able = [(state, state.capabilities(now)) for state in ordered]
    if needs.wish and len(able) > 1:
        able.sort(key=lambda pair: not can_switch_thinking(needs, pair[1]))
    auto = needs.tools == "auto" and mode is None
    return [Candidate(state, step, adapt(needs, can, mode), auto and can.doubtful) for state, can in able]


def with_forced_call(candidate: Candidate, request: InferenceRequest, now: float) -> Candidate | None:
    """The same candidate with a forced tool call, for a retry after an empty answer. None if the backend cannot be
    forced, or was already."""
    if not request.tools or request.tool_choice != "auto" or candidate.adapt.mode or candidate.adapt.force:
        return None
    if request.choices > 1 or candidate.state.capabilities(now).required in ("no", "emulated"):
        return None
    kinds = (*candidate.adapt.kinds, FORCED)
    return candidate._replace(adapt=replace(candidate.adapt, force=True, kinds=kinds))


def _why_not_in_mode(
    why: SkipReason | None,
    state: BackendState,
    request: InferenceRequest,
    room: int,
    now: float,
    resort: Resort,
    outcomes: Mapping[str, str],
) -> SkipReason | None:
    """Why a backend cannot serve in this mode either: the mode only compensates for a lack of tools. None if it can.
    A backend that could serve without the mode was tried already."""
    if why is None:
        kind = outcomes.get(state.name)
        return (
            SkipReason("local_only", "may not be asked now (cloud_when)")
            if kind is None
            else SkipReason(kind, "was tried")
        )
    if not rescued(state.capabilities(now), why.lacks, resort):
        return why
    if not state.health.usable(now):  # parked, and started for no request that it can only serve so
        return SkipReason(*unavailable(state, now))
    return None if fits_window(state, request, room, now) else too_long(state, request, now)


def _spent(state: BackendState, over_budget: OverBudget | None) -> SkipReason | None:
    """The budget that forbids this backend. Checked last, so that `budget` is the reason only if the backend could
    serve otherwise."""
    reason = over_budget(state) if over_budget is not None else None
    return None if reason is None else SkipReason("budget", reason)
