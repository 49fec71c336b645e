"""The plan of one request: which backends may serve it, in which order, and why the others may not.

A pure function of the snapshot's alias, the fleet's state, the request and the time: it writes to none of them. A step
is left only when no member of it can serve; a cloud step is entered only for the reasons its alias allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.config.snapshot import Alias, Backend, Client
from gateway.domain.backend import BackendState
from gateway.domain.health_state import StartDecision, State
from gateway.domain.reason import kind_of
from gateway.domain.request import NO_MEDIA, InferenceRequest
from gateway.domain.token_ratio import room_needed
from gateway.routing.balance import order
from gateway.routing.loads import behind_ready, loads_first
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
    lacking,
    needs_of,
    rescued,
    with_media,
)
from gateway.routing.placements import Session, no_session
from gateway.routing.pooled import Chain, chain_of
from gateway.routing.unmet_needs import describe_lack
from gateway.routing.window import fits_window, tokens

__all__ = [
    "KINDS",
    "TEMPORARY",
    "Candidate",
    "OverBudget",
    "Plan",
    "Resort",
    "SkipReason",
    "SkippedBackend",
    "make_plan",
    "why_not",
]

ON_REQUEST = "on_request"  # kind of a backend that is parked, and that this request may have started
STARTING = "starting"  # kind of a backend that is being started for a request
LATER = "later"  # kind of a backend behind one that starts, where the alias waits for that one (while_starting)
STARTS = frozenset({ON_REQUEST, STARTING})
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


class Candidate(NamedTuple):
    """A backend to try; `step` counts from 0. `adapt`: how the request is changed for it. `doubtful`: it may well
    not make the call that the request requires, so it comes after the other local backends."""

    state: BackendState
    step: int
    adapt: Adaptation = NO_ADAPTATION
    doubtful: bool = False


class SkipReason(NamedTuple):
    """Why a backend is not used. `kind` is a key of KINDS, `reason` is for people; `lacks` with kind incapable.
    `wait`: seconds after which the reason may be gone; None if not known."""

    kind: str
    reason: str
    lacks: tuple[Lack, ...] = ()
    wait: float | None = None


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
                why = _out_of_chain(chain, state) or why
            why = why or _spent(state, over_budget)
            if resort is not None:
                why = _why_not_in_mode(why, state, request, room, now, resort, plan.outcomes)
                why = why or _spent(state, over_budget)
            if why is None:
                usable.append(state)
            else:
                if why.kind in STARTS:
                    has_starts = True
                    if why.kind == ON_REQUEST and refuses_start is not None:
                        why = _unless_refused(why, refuses_start(state, client, alias))
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
        plan.candidates, plan.loads = behind_ready(plan.candidates, plan.outcomes, alias.failover.when_loading, now)
        plan.outcomes |= {state.name: "busy" for state in plan.loads if state.name not in plan.outcomes}
    if request.own is not None and request.own.left_out:  # who runs them comes first, for others they are left out
        plan.candidates.sort(key=lambda c: not c.state.capabilities(now).hosted)
    if has_starts and refuses_start is not None:
        _plan_starts(plan)
    return plan


def _unless_refused(why: SkipReason, decision: StartDecision) -> SkipReason:
    refusal = decision.refusal
    return SkipReason("parked", f"is parked: {refusal}", wait=decision.wait) if refusal else why


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
    return None if fits_window(state, request, room, now) else _too_long(state, request, now)


def why_not(
    state: BackendState, request: InferenceRequest, needs: Needs, room: int, now: float, *, local_only: bool
) -> SkipReason | None:
    """Why this backend cannot serve this request, with `room` tokens of answer, now; None if it can."""
    backend = state.backend
    if backend.cloud and local_only:
        return SkipReason("local_only", "is outside the LAN, and this request may not leave it")
    endpoint = request.endpoint.name
    if endpoint not in state.traits.endpoints and endpoint not in backend.serves:
        if backend.serves:
            return SkipReason(
                "unserved", f"does not serve {request.endpoint.path} (serves: {', '.join(backend.serves)})"
            )
        return SkipReason("unserved", f"engine {state.server} does not serve {request.endpoint.path}")
    health = state.health
    away: SkipReason | None = None
    if state.absent:
        return SkipReason("misconfigured", state.absent)
    if health.state is not State.READY and not health.usable(now):
        away = SkipReason(*unavailable(state, now))
        if away.kind not in STARTS:  # a start has to be of use: what follows is asked of it too
            return away
    if state.cooldown_until > now:
        return SkipReason("cooldown", f"asked for a pause of {state.cooldown_until - now:.0f} more seconds")
    asked = needs is not NO_NEEDS or bool(state.facts.lacks)
    if not asked and declines_media(backend):
        asked = request.media is not NO_MEDIA
    if asked and (lack := incapable(state, request, needs, now)) is not None:
        return lack
    return away if fits_window(state, request, room, now) else _too_long(state, request, now)


def _out_of_chain(chain: Chain, state: BackendState) -> SkipReason | None:
    reason = chain.why_not(state)
    return None if reason is None else SkipReason("incapable", reason)


def declines_media(backend: Backend) -> bool:
    """Does routes.yaml say that it takes no pictures, no sound or no files? Then the prompt is searched for them."""
    return backend.vision is False or backend.audio is False or backend.pdf is False


def _spent(state: BackendState, over_budget: OverBudget | None) -> SkipReason | None:
    """The budget that forbids this backend. Checked last, so that `budget` is the reason only if the backend could
    serve otherwise."""
    reason = over_budget(state) if over_budget is not None else None
    return None if reason is None else SkipReason("budget", reason)


def _too_long(state: BackendState, request: InferenceRequest, now: float) -> SkipReason:
    return SkipReason(
        "too_long", f"the prompt has about {tokens(state, request)} tokens, its window {state.window(now)}"
    )


def unavailable(state: BackendState, now: float) -> tuple[str, str]:
    """(kind, reason) of a backend whose health forbids its use."""
    health = state.health
    reason = kind_of(health.reason)  # without the backend's own error text, which was meant for another client
    if health.state is State.MISCONFIGURED:
        return "misconfigured", f"is misconfigured: {reason}"
    if health.announced:
        return "warming", f"is to be used soon, a switch of the mode is under way ({health.reason})"
    if health.outside:
        return "outside", f"is parked ({health.reason})"
    if health.startable:
        return ON_REQUEST, "is parked, and starts on request"
    if health.state is State.PARKED:
        return "parked", f"is parked ({'asleep' if health.asleep else 'run: on_demand'})"
    if health.summoned and health.state is State.WARMING:
        return STARTING, f"is starting ({reason})"
    if health.state is State.DRAINING:
        return "draining", f"is draining ({reason})"
    if health.state is State.SUSPECT:
        return "down", f"is on trial, and one request or canary is finding out ({reason})"
    if health.starting(now):
        return "warming", f"is starting or has just gone ({reason})"
    return "down", f"is down ({reason})"


def incapable(state: BackendState, request: InferenceRequest, needs: Needs, now: float) -> SkipReason | None:
    """Why this backend cannot do what the request needs; None if it can, or it is not known that it cannot."""
    if state.facts.is_lacking("endpoint:" + request.endpoint.name, now):
        return SkipReason("unserved", f"does not serve {request.endpoint.path} (it answered 404)")
    able = state.capabilities(now)
    if able.images is False or able.audio is False or able.sources.get("pdf") in ("declared", "learned"):
        needs = with_media(needs, request)
    lacks = lacking(needs, able)
    if not lacks:
        return None
    return SkipReason("incapable", "; ".join(describe_lack(lack, needs, state, able) for lack in lacks), lacks)
