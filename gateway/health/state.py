"""The health of one backend: a small state machine, with time passed in and no effects.

Two kinds of evidence move it: liveness (the prober's answers) and outcomes (what real requests met). A verdict that
came from requests is not cleared by a liveness 200 alone, since a broken engine answers `/health` too: after good
checks one request at a time is let through (half-open), and its outcome decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.config.snapshot import HealthSettings

BACKOFF_LEAST, BACKOFF_MOST = 2.0, 30.0  # seconds until a backend that failed requests is tried by one again


class State(StrEnum):
    UNKNOWN = "unknown"  # not looked at yet: tried when asked for
    READY = "ready"
    SUSPECT = "suspect"  # failed lately, or back on trial: tried after the others
    DOWN = "down"
    MISCONFIGURED = "misconfigured"  # it answers, but not to our key or our model name
    PARKED = "parked"  # run: on_demand, and not there


SERVING = frozenset({State.UNKNOWN, State.READY, State.SUSPECT})


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state, as an event with its evidence."""

    backend: str
    before: State
    after: State
    reason: str
    at: float


@dataclass(slots=True)
class Health:
    """`since` and all times are the caller's monotonic seconds."""

    backend: str
    settings: HealthSettings
    on_demand: bool = False
    state: State = State.UNKNOWN
    reason: str = "not checked yet"
    since: float = 0.0
    born: float = 0.0
    ever_ready: bool = False
    fails: int = 0  # failures in a row, of either kind
    oks: int = 0  # good liveness checks in a row
    from_requests: bool = False  # the verdict stands on real requests
    half_open: bool = False  # suspect on trial: one request at a time
    trial: bool = False  # that request is under way
    retry_at: float = 0.0  # not on trial before
    backoff: float = BACKOFF_LEAST

    def usable(self, now: float) -> bool:
        """May a request be sent there at all?"""
        if self.state in SERVING:
            return not (self.half_open and self.trial)
        return self.state is State.DOWN and self.settings.every is None and now >= self.retry_at and not self.trial

    def due(self, now: float) -> bool:
        """Suspect because of requests, well by its health checks since: one request at a time may find out, and that
        one goes there before its siblings. Without this a replica that failed once would never be asked again."""
        if self.state is not State.SUSPECT or self.trial or now < self.retry_at:
            return False
        return self.settings.every is None or self.oks >= self.settings.recover_after

    def starting(self, now: float) -> bool:
        """Not there, but it may well come: it is starting for the first time, or has only just gone."""
        if self.state is not State.DOWN:
            return False
        return now - (self.since if self.ever_ready else self.born) < self.settings.start_grace

    # -- evidence -------------------------------------------------------------------------------------------------

    def alive(self, now: float) -> Transition | None:
        """A liveness check was good."""
        self.oks += 1
        if self.state is State.READY:
            if not self.from_requests:
                self.fails = 0
            return None
        if self.state in (State.UNKNOWN, State.PARKED):
            return self._ready("answers its health check", now)
        if self.from_requests:
            if self.state is State.DOWN and self.oks >= self.settings.recover_after and now >= self.retry_at:
                return self._trial("answers its health check again; one request decides", now)
            return None
        if self.oks >= self.settings.recover_after and self.state in (State.DOWN, State.SUSPECT):
            return self._ready(f"{self.oks} good health checks", now)
        return None

    def dead(self, reason: str, now: float) -> Transition | None:
        """A liveness check failed."""
        self.oks = 0
        self.fails += 1
        if self.on_demand and (not self.ever_ready or self.state is State.DOWN):
            self.ever_ready = False
            return self._move(State.PARKED, "run: on_demand and not there", now)
        if self.state in (State.DOWN, State.PARKED, State.MISCONFIGURED):
            if self.state is not State.DOWN and not self.on_demand:
                return self._down(reason, now)
            self.reason = reason
            return None
        if self.fails >= self.settings.fail_after or self.state is State.UNKNOWN:
            if self.on_demand:
                self.ever_ready = False
                return self._move(State.PARKED, f"run: on_demand and gone: {reason}", now)
            return self._down(reason, now)
        return self._move(State.SUSPECT, reason, now)

    def succeeded(self, now: float) -> Transition | None:
        """A request was answered."""
        self.fails = 0
        self.backoff = BACKOFF_LEAST
        if self.state is State.READY:
            self.from_requests = False
            return None
        return self._ready("answered a request", now)

    def failed(self, reason: str, now: float) -> Transition | None:
        """A request failed there: a connection failure, a 5xx, silence, a broken answer."""
        if self.state is State.PARKED:
            return None  # the last requests of what was stopped on purpose
        self.fails += 1
        self.from_requests = True
        self.oks = 0
        if self.state is State.DOWN and now < self.retry_at:
            return None  # begun before: the same incident, not another failed trial
        if self.half_open or self.state is State.DOWN or self.fails >= self.settings.fail_after:
            self.retry_at = now + self.backoff
            self.backoff = min(BACKOFF_MOST, self.backoff * 2)
            return self._down(reason, now)
        self.retry_at = now + self.backoff
        return self._move(State.SUSPECT, reason, now)

    def misconfigured(self, reason: str, now: float) -> Transition | None:
        """It answers, but refuses our credential or does not know the model."""
        self.from_requests = True
        self.oks = 0
        if self.half_open:  # its model list was right, the request was refused all the same
            self.half_open = False
            self.retry_at = now + self.backoff
            self.backoff = min(BACKOFF_MOST, self.backoff * 2)
        return self._move(State.MISCONFIGURED, reason, now)

    def configured(self, now: float) -> Transition | None:
        """Its model list now takes our credential and holds our model: one request decides."""
        if self.state is State.MISCONFIGURED and now >= self.retry_at:
            return self._trial("its model list is right again; one request decides", now)
        return None

    # -- moves ----------------------------------------------------------------------------------------------------

    def _ready(self, reason: str, now: float) -> Transition | None:
        self.fails = 0
        self.from_requests = False
        self.half_open = False
        self.ever_ready = True
        return self._move(State.READY, reason, now)

    def _trial(self, reason: str, now: float) -> Transition | None:
        self.half_open = True
        return self._move(State.SUSPECT, reason, now)

    def _down(self, reason: str, now: float) -> Transition | None:
        self.half_open = False
        return self._move(State.DOWN, reason, now)

    def _move(self, state: State, reason: str, now: float) -> Transition | None:
        before = self.state
        self.reason = reason
        if state is before:
            return None
        self.state = state
        self.since = now
        return Transition(self.backend, before, state, reason, now)
