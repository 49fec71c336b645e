"""The course of one request: whom of its plan it may still ask, and whom it waits for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from gateway.admission.capacity import is_open
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.routing.plan import Candidate, Plan, Resort

CLOUD_TRIES = 2  # a request body is sent to clouds at most so often: each may be billed

# Makes the plan, of a mode of `on_unsupported` where one is given, with how backends have ended so far.
MakePlan = Callable[[Resort | None, Mapping[str, str] | None], Plan]


class Course:
    """`left` are the candidates that were not asked yet, in order. `resort` is what `on_unsupported` allows."""

    __slots__ = ("_again", "_clouds", "_done", "_gone", "_make", "_mode", "_resort", "has_spare", "left", "plan")

    def __init__(self, make: MakePlan, resort: Resort | None) -> None:
        self.plan = make(None, None)
        self.left = deque(self.plan.candidates)
        self.has_spare = False  # a complete but empty answer is there: nobody else has to be won for it
        self._make = make
        self._resort = resort
        self._mode: Resort | None = None
        self._again: Candidate | None = None
        self._done: set[tuple[str, Resort | None]] = set()  # asked, and not to be asked again in this mode
        self._gone: set[str] = set()  # nobody was there; maybe later
        self._clouds = 0

    def head(self) -> Candidate | None:
        """The one to ask next. A cloud only when it may be; with nobody left, once, who can in the way that
        `on_unsupported` allows."""
        while True:
            while self.left:
                candidate = self.left[0]
                if not candidate.state.backend.cloud or self._may_enter(candidate):
                    return candidate
                self.left.popleft()
            if not self._turn_to_resort():
                return None

    def offered(self, is_busy: Callable[[BackendState], bool]) -> list[Candidate]:
        """Those that it takes a slot of, whichever is free first, in order of preference: the members of its step; with
        `on_busy: next` those of later local steps too. Clouds only when `cloud_when` says busy and all before is."""
        head = self.head()
        if head is None or head.state.backend.cloud:
            return [] if head is None else [head]
        alias = self.plan.alias
        local = [c for c in self.left if not c.state.backend.cloud]
        alike = [c for c in local if c.doubtful == head.doubtful]
        found = alike if alias.on_busy == "next" else [c for c in alike if c.step == head.step]
        if "busy" in alias.cloud_when and all(is_busy(c.state) for c in local):
            found += [c for c in self.left if c.state.backend.cloud and self._may_enter(c)]
        return found

    def take(self, candidate: Candidate) -> None:
        """It is asked now. Earlier steps that were passed by were busy."""
        if candidate is self.left[0]:
            self.left.popleft()
        else:
            met = self.plan.met
            for other in self.left:
                if other.step < candidate.step and not other.state.backend.cloud:
                    met.setdefault(other.state.name, "busy")
            self.left = deque(c for c in self.left if c is not candidate)
        if candidate.state.backend.cloud:
            self._clouds += 1
        self._again = None

    def leave(self, candidate: Candidate, kind: str, *, gone: bool = False) -> None:
        """It did not answer. One that asked for a pause, or was not there, may be asked again after a wait."""
        name = candidate.state.name
        self.plan.met[name] = kind
        if gone:
            self._gone.add(name)
        elif kind != "cooldown" or candidate.state.cooldown_until <= time.monotonic():  # a pause that is none
            self._done.add((name, candidate.adapt.mode))

    def once_more(self, candidate: Candidate) -> None:
        """The same one again, first."""
        self._again = candidate
        self.left.appendleft(candidate)

    def anew(self, now: float) -> None:
        """A plan of what is there now, without those that had their turn."""
        met = {name: kind for name, kind in self.plan.met.items() if kind != "busy"}
        plan, mode = self._make(None, met), None
        left = self._not_asked(plan, None, now)
        if not left and self._resort is not None and not self.has_spare:
            other = self._make(self._resort, met)
            if found := self._not_asked(other, self._resort, now):
                plan, mode, left = other, self._resort, found
        if self._again is not None:
            name = self._again.state.name
            if any(c.state.name == name for c in plan.candidates):
                left = [self._again, *(c for c in left if c.state.name != name)]
        self.plan, self._mode, self.left = plan, mode, deque(left)

    def coming(self, now: float) -> tuple[BackendState, ...]:
        """Those that cannot serve now and are expected to: warming, pausing, or on trial by another request. Who
        is down is not waited for: nobody knows for how long."""
        skipped = [s.state for s in self.plan.skipped if s.kind == "cooldown" or is_coming(s.state, now)]
        away = (s for s in self._once_there() if not self._is_there(s, now))
        paused = (s for s in away if s.cooldown_until > now or is_coming(s, now))
        return (*(state for state in skipped if self._may_pay(state)), *paused)

    def has_returned(self, now: float) -> bool:
        """Is one there again that was away, or paused, when it was asked?"""
        return any(self._is_there(state, now) for state in self._once_there())

    def states(self) -> tuple[BackendState, ...]:
        """All backends of the alias."""
        found = {c.state.name: c.state for c in self.plan.candidates} | {
            s.state.name: s.state for s in self.plan.skipped
        }
        return tuple(found.values())

    def _once_there(self) -> Iterator[BackendState]:
        """Those of the plan that were asked in vain, and may be asked again."""
        for candidate in self.plan.candidates:
            name = candidate.state.name
            paused = self.plan.met.get(name) == "cooldown" and (name, candidate.adapt.mode) not in self._done
            if (paused or name in self._gone) and self._may_pay(candidate.state):
                yield candidate.state

    def _is_there(self, state: BackendState, now: float) -> bool:
        return is_open(state, now) and (state.name not in self._gone or is_back(state, now))

    def _may_pay(self, state: BackendState) -> bool:
        return not state.backend.cloud or self._clouds < CLOUD_TRIES

    def _may_enter(self, cloud: Candidate) -> bool:
        return self._may_pay(cloud.state) and self.plan.may_enter(cloud)

    def _turn_to_resort(self) -> bool:
        if self._resort is None or self._mode is not None or self.has_spare:
            return False
        plan = self._make(self._resort, self.plan.met)
        left = [c for c in plan.candidates if (c.state.name, self._resort) not in self._done]
        if not left:
            return False
        self.plan, self._mode, self.left = plan, self._resort, deque(left)
        return True

    def _not_asked(self, plan: Plan, mode: Resort | None, now: float) -> list[Candidate]:
        return [
            c
            for c in plan.candidates
            if (c.state.name, mode) not in self._done and (c.state.name not in self._gone or is_back(c.state, now))
        ]


def is_on_trial(state: BackendState, now: float) -> bool:
    """One request (or a canary) is there to find out whether it is well again; nobody else may go meanwhile."""
    return state.health.trial and not state.health.usable(now)


def is_coming(state: BackendState, now: float) -> bool:
    """Is it starting, or being found out about?"""
    return state.health.state is State.WARMING or is_on_trial(state, now)


def is_back(state: BackendState, now: float) -> bool:
    """Somebody is there again: seen by its checks, or due to be tried."""
    health = state.health
    if health.state in (State.UNKNOWN, State.SUSPECT):
        return health.half_open or health.due(now)
    return health.usable(now)
