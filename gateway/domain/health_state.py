"""What is known of one backend's health: its state, and what follows from it at once (whether it may be used, or is
starting), and how long a backend that fell has to wait.

The transitions are in health_machine.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.config.snapshot import HealthSettings


class State(StrEnum):
    UNKNOWN = "unknown"  # not checked yet; requests may try it
    WARMING = "warming"  # it is starting, or is back and has not yet passed a canary
    READY = "ready"
    BUSY = "busy"  # ready, with every slot in use
    SUSPECT = "suspect"  # failed lately, or is on trial: used after the others
    DOWN = "down"
    DRAINING = "draining"  # drained by an operator, or removed from routes.yaml: its requests end, no new ones are sent
    MISCONFIGURED = "misconfigured"  # it answers, but refuses our key or does not serve our model
    PARKED = "parked"  # outside the mode in force; or `run: on_demand` or `on_request`, and not running


READY, SUSPECT = State.READY, State.SUSPECT  # for the request path: in Python 3.11, `State.READY` is a slow lookup
WELL = frozenset({State.READY, State.BUSY})
SERVING = frozenset({State.UNKNOWN, State.READY, State.BUSY, State.SUSPECT})


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state, with its evidence. `at`: monotonic seconds."""

    backend: str
    before: State
    after: State
    reason: str
    at: float


# How long a failed backend gets no requests, and how long its checks must be good before it is used again, in seconds.
# Each pause is twice the one before; they start over after the backend was well for long enough.
STALL_LEAST, STALL_MOST = 10.0, 600.0  # after its engine stood still
QUIET_LEAST, QUIET_MOST = 15.0, 600.0  # of good checks that are required of a backend that fell repeatedly
STEADY = 300.0  # of being well after which earlier falls do not count


def pause_after(stalls: int) -> float:
    """Seconds of pause after this many stalls."""
    return _doubled(STALL_LEAST, stalls - 1, STALL_MOST)


def quiet_needed(falls: int, every: float | None) -> float:
    """Seconds of good checks required after so many falls; 0 after the first. `every`: seconds between checks."""
    return 0.0 if falls < 2 else _doubled(QUIET_LEAST, falls - 2, QUIET_MOST) * _pace(every)


def is_steady(well_for: float, every: float | None) -> bool:
    """Was the backend well for so long (seconds) that earlier falls no longer count?"""
    return well_for >= STEADY * _pace(every)


def _doubled(least: float, times: int, most: float) -> float:
    return min(most, least * 2.0 ** min(times, 10))


def _pace(every: float | None) -> float:
    """A factor for all times above: below 1 where checks run more than once a second."""
    return min(1.0, every or 1.0)


BACKOFF_LEAST = 2.0  # seconds; the first pause until one trial request is sent to a backend that failed requests


@dataclass(slots=True)
class HealthRecord:
    """Times are the caller's monotonic seconds."""

    backend: str
    settings: HealthSettings
    on_demand: bool = False  # it need not be there: `run: on_demand` or `on_request`
    on_request: bool = False  # a request may have it started
    summoned: bool = False  # the gateway starts it for a request: it is warming until that has worked or failed
    state: State = State.UNKNOWN
    reason: str = "not checked yet"
    since: float = 0.0
    born: float = 0.0
    canaried: bool = False  # it gets canaries: they decide when it has recovered
    ever_ready: bool = False
    fails: int = 0  # failures in a row, of either kind
    oks: int = 0  # good liveness checks in a row
    good_since: float = 0.0  # when that row began
    from_requests: bool = False  # the state was caused by real requests
    unanswered_lately: bool = False  # a harmless request failed too since it was last well
    wrong: bool = False  # its last canary was answered wrongly
    half_open: bool = False  # suspect, with one trial request at a time
    trial: bool = False  # that request, or a canary, is under way
    retry_at: float = 0.0  # no trial request before that
    backoff: float = BACKOFF_LEAST
    silent: bool = False  # its last check got no answer, and nothing else came from it
    gone: bool = False  # since it was last well its port refused a connection
    hopeless: bool = False  # it did not start within `start_grace`
    well: bool = False  # ready, and not fallen since
    well_since: float = 0.0
    falls: int = 0  # in a row, with less than STEADY of being well between them
    stalls: int = 0  # counted in the same way
    outside: bool = False  # the mode in force: it is parked, whatever the evidence
    asleep: bool = False  # somebody has put its engine to sleep: it is parked until it is awake, or gone
    drained: bool = False  # by an operator
    coming: bool = False  # a switch under way is to start it, or to use it again
    leaving: bool = False  # a switch under way drains and stops it
    full: int = 0  # checks in a row that found every slot in use

    def usable(self, now: float) -> bool:
        """May any request be sent to this backend?"""
        if self.state in SERVING:
            return not (self.half_open and self.trial)
        unprobed = self.state in (State.DOWN, State.MISCONFIGURED) and self.settings.every is None
        return unprobed and now >= self.retry_at and not self.trial

    def due(self, now: float) -> bool:
        """Is a trial request due? It is when requests made the backend suspect and its health checks have been good
        since. A trial takes precedence over the other replicas; else a replica that failed once would never get a
        request again."""
        if self.state is not State.SUSPECT or self.trial or now < self.retry_at:
            return False
        return self.settings.every is None or self.oks >= self.settings.recover_after

    @property
    def avoided(self) -> bool:
        """Is it suspect because its checks get no answer? Requests go where another backend can serve them."""
        return self.silent and self.state is State.SUSPECT

    @property
    def set_aside(self) -> bool:
        """Is it parked whatever the evidence: outside the mode in force, or asleep?"""
        return self.outside or self.asleep

    @property
    def startable(self) -> bool:
        """May a request have it started: it is not there, and only requests bring it up?"""
        return self.on_request and self.state is State.PARKED and not self.set_aside and not self.drained

    @property
    def held(self) -> bool:
        """Is its state decided by an operator, the mode in force or its sleep, and not by evidence?"""
        return self.set_aside or self.state is State.DRAINING

    def starting(self, now: float) -> bool:
        """Is it unavailable, but probably back soon? It is starting, or went down within `start_grace`."""
        if self.state not in (State.DOWN, State.WARMING) or self.hopeless:
            return False
        since = self.since if self.ever_ready else self.born
        return now - since < self.settings.start_grace

    @property
    def announced(self) -> bool:
        """Is it parked only until the switch under way comes to it? It is worth waiting for."""
        away = self.outside or (self.on_demand and self.state is State.PARKED)
        return self.coming and away and not self.asleep

    def quiet(self, now: float) -> bool:
        """Have its checks been good for long enough? The required time doubles with each fall (`hold`)."""
        return self.oks > 0 and now - self.good_since >= self.hold

    @property
    def hold(self) -> float:
        """Seconds without a bad check after which it is used again."""
        return quiet_needed(self.falls, self.settings.every)

    def _fall(self, now: float) -> None:
        """Count a fall: the backend was well, and no longer is."""
        if not self.well:
            return
        self.well = False
        forgotten = is_steady(now - self.well_since, self.settings.every)
        self.falls = 1 if forgotten else self.falls + 1

    def _move(self, state: State, reason: str, now: float) -> Transition | None:
        before = self.state
        self.reason = reason
        if state is before:
            return None
        self.state = state
        self.since = now
        return Transition(self.backend, before, state, reason, now)


@dataclass(frozen=True, slots=True)
class StartDecision:
    """Whether a parked backend is started for a request.

    `refusal`: empty if it is started, after those of `stops` were stopped. `stops`: backend -> for how long it has been
    idle (seconds), the longest first. `notes`: remarks on the start, for the operator. `wait`: seconds after which the
    refusal may end by itself; None if not known."""

    refusal: str = ""
    stops: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    wait: float | None = None
