"""Failover state of one request: which candidates of its plan are left, and which backends it waits for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from gateway.admission.capacity import is_open
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.routing.needs import Resort
from gateway.routing.plan import Candidate, Plan

CLOUD_TRIES = 2  # a request is sent to clouds at most this often: each attempt may be billed

# Makes a plan: (mode of `on_unsupported` or None, backend name -> how its attempt ended).
MakePlan = Callable[[Resort | None, Mapping[str, str] | None], Plan]


class FailoverState:
    """`remaining` are the candidates without an attempt, in order. `resort` is the mode that `on_unsupported`
    allows."""

    __slots__ = (
        "_absent",
        "_accepts",
        "_attempted",
        "_clouds",
        "_make",
        "_mode",
        "_resort",
        "_retried",
        "has_spare",
        "plan",
        "remaining",
    )

    def __init__(self, make: MakePlan, resort: Resort | None) -> None:
        self.plan = make(None, None)
        self.remaining = deque(self.plan.candidates)
        self.has_spare = False  # an empty answer is kept, which is delivered if no other backend answers
        self._make = make
        self._resort = resort
        self._mode: Resort | None = None
        self._retried: Candidate | None = None
        self._attempted: set[tuple[str, Resort | None]] = set()  # (backend, mode) that get no further attempt
        self._absent: set[str] = set()  # not reachable at their attempt, perhaps later
        self._accepts: Callable[[BackendState], bool] | None = None  # None = any backend of the plan
        self._clouds = 0

    def next_candidate(self) -> Candidate | None:
        """The candidate for the next attempt; None = none is left. Clouds only where the alias allows it. When no
        candidate is left, the mode of `on_unsupported` is tried, once."""
        while True:
            while self.remaining:
                candidate = self.remaining[0]
                if not candidate.state.backend.cloud or self._may_enter(candidate):
                    return candidate
                self.remaining.popleft()
            if not self._switch_to_resort():
                return None

    def acceptable(self, is_busy: Callable[[BackendState], bool]) -> list[Candidate]:
        """Candidates whose slots the request accepts, whichever is free first, in order of preference: the members
        of its step; with `on_busy: next` those of later local steps too. Clouds only when `cloud_when` has `busy`
        and all local candidates are busy."""
        next_candidate = self.next_candidate()
        if next_candidate is None or next_candidate.state.backend.cloud:
            return [] if next_candidate is None else [next_candidate]
        alias = self.plan.alias
        local = [c for c in self.remaining if not c.state.backend.cloud]
        kind = next_candidate.doubtful, next_candidate.state.health.avoided
        alike = [c for c in local if (c.doubtful, c.state.health.avoided) == kind]
        found = alike if alias.on_busy == "next" else [c for c in alike if c.step == next_candidate.step]
        if "busy" in alias.cloud_when and all(is_busy(c.state) for c in local):
            found += [c for c in self.remaining if c.state.backend.cloud and self._may_enter(c)]
        return found

    def mark_attempted(self, candidate: Candidate) -> None:
        """An attempt on this candidate begins. Earlier steps that were skipped for it count as busy."""
        if candidate is self.remaining[0]:
            self.remaining.popleft()
        else:
            outcomes = self.plan.outcomes
            for other in self.remaining:
                if other.step < candidate.step and not other.state.backend.cloud:
                    outcomes.setdefault(other.state.name, "busy")
            self.remaining = deque(c for c in self.remaining if c is not candidate)
        if candidate.state.backend.cloud:
            self._clouds += 1
        self._retried = None

    def mark_begun(self, first: Candidate) -> None:
        """The first attempt began here before the plan was made. It stays a candidate of the plan, which it was then,
        even if the backend cannot serve any more: why a later step serves is what became of the attempt. Attempts are
        counted by name: routes.yaml may have been edited since, and the backend have another state."""
        plan, name = self.plan, first.state.name
        self.remaining = deque(c for c in self.remaining if c.state.name != name)
        skip = next((s for s in plan.skipped if s.state.name == name), None)
        if skip is not None:
            plan.skipped.remove(skip)
            plan.candidates.insert(0, first._replace(state=skip.state, step=skip.step))

    def mark_failed(self, candidate: Candidate, kind: str, *, gone: bool = False) -> None:
        """The attempt failed, with the `kind` of its verdict. A backend that asked for a pause, or was not reachable
        (`gone`), may get another attempt after a wait."""
        name = candidate.state.name
        self.plan.outcomes[name] = kind
        if gone:
            self._absent.add(name)
        elif kind != "cooldown" or candidate.state.cooldown_until <= time.monotonic():  # the pause is over already
            self._attempted.add((name, candidate.adapt.mode))

    def retry(self, candidate: Candidate) -> None:
        """The next attempt goes to the same candidate again."""
        self._retried = candidate
        self.remaining.appendleft(candidate)

    def replan(self, now: float) -> None:
        """Plan again with the backends as they are now, without candidates that had their attempt."""
        outcomes = {name: kind for name, kind in self.plan.outcomes.items() if kind != "busy"}
        plan, mode = self._make(None, outcomes), None
        remaining = self._unattempted(plan, None, now)
        if not remaining and self._resort is not None and not self.has_spare:
            other = self._make(self._resort, outcomes)
            if found := self._unattempted(other, self._resort, now):
                plan, mode, remaining = other, self._resort, found
        if self._retried is not None:
            name = self._retried.state.name
            if any(c.state.name == name for c in plan.candidates):
                remaining = [self._retried, *(c for c in remaining if c.state.name != name)]
        if self._accepts is not None:
            plan.startable = ()
        self.plan, self._mode, self.remaining = plan, mode, deque(remaining)

    def restrict(self, accepts: Callable[[BackendState], bool], now: float) -> None:
        """From now on only these backends are candidates, as they are now. None is waited for that has to recover, and
        none is started."""
        self._accepts = accepts
        self.replan(now)

    def recovering(self, now: float) -> tuple[BackendState, ...]:
        """Backends that cannot serve now and are expected to: warming, pausing, or on trial by another request. A
        backend that is down is not waited for: nothing says for how long."""
        if self._accepts is not None:
            return ()
        skipped = [s.state for s in self.plan.skipped if s.kind == "cooldown" or is_coming(s.state, now)]
        away = (s for s in self._retryable() if not self._is_available(s, now))
        paused = (s for s in away if s.cooldown_until > now or is_coming(s, now))
        return (*(state for state in skipped if self._within_cloud_tries(state)), *paused)

    def has_returned(self, now: float) -> bool:
        """Is a backend available again that was not reachable, or paused, at its attempt?"""
        return any(self._is_available(state, now) for state in self._retryable())

    def states(self) -> tuple[BackendState, ...]:
        """All backends of the alias."""
        found = {c.state.name: c.state for c in self.plan.candidates} | {
            s.state.name: s.state for s in self.plan.skipped
        }
        return tuple(found.values())

    def _retryable(self) -> Iterator[BackendState]:
        """Backends of the plan whose attempt failed, and that may get another one."""
        for candidate in self.plan.candidates:
            name = candidate.state.name
            paused = self.plan.outcomes.get(name) == "cooldown" and (name, candidate.adapt.mode) not in self._attempted
            if (paused or name in self._absent) and self._within_cloud_tries(candidate.state):
                yield candidate.state

    def _is_available(self, state: BackendState, now: float) -> bool:
        return is_open(state, now) and (state.name not in self._absent or is_back(state, now))

    def _within_cloud_tries(self, state: BackendState) -> bool:
        return not state.backend.cloud or self._clouds < CLOUD_TRIES

    def _may_enter(self, cloud: Candidate) -> bool:
        return self._within_cloud_tries(cloud.state) and self.plan.may_enter(cloud)

    def _switch_to_resort(self) -> bool:
        if self._resort is None or self._mode is not None or self.has_spare:
            return False
        plan = self._make(self._resort, self.plan.outcomes)
        remaining = [c for c in plan.candidates if (c.state.name, self._resort) not in self._attempted]
        if not remaining:
            return False
        self.plan, self._mode, self.remaining = plan, self._resort, deque(remaining)
        return True

    def _unattempted(self, plan: Plan, mode: Resort | None, now: float) -> list[Candidate]:
        return [
            c
            for c in plan.candidates
            if (c.state.name, mode) not in self._attempted
            and (c.state.name not in self._absent or is_back(c.state, now))
            and (self._accepts is None or self._accepts(c.state))
        ]


def is_on_trial(state: BackendState, now: float) -> bool:
    """One request (or a canary) tests whether the backend is well again; no other request goes there meanwhile."""
    return state.health.trial and not state.health.usable(now)


def is_coming(state: BackendState, now: float) -> bool:
    """Is the backend starting, to be started by a switch under way, or on trial?"""
    return state.health.state is State.WARMING or state.health.announced or is_on_trial(state, now)


def is_back(state: BackendState, now: float) -> bool:
    """Is a backend that was not reachable available again: its checks answer, or a trial is due?"""
    health = state.health
    if health.state in (State.UNKNOWN, State.SUSPECT):
        return health.half_open or health.due(now)
    return health.usable(now)
