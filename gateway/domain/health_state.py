"""The states of a backend's health, a change from one to another, and how long a backend that fell has to wait."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """Seconds without a failed check that are required after so many falls; 0 after the first. `every`: seconds between
    checks."""
    return 0.0 if falls < 2 else _doubled(QUIET_LEAST, falls - 2, QUIET_MOST) * _pace(every)


def is_steady(well_for: float, every: float | None) -> bool:
    """Was the backend well for so long (seconds) that earlier falls no longer count?"""
    return well_for >= STEADY * _pace(every)


def _doubled(least: float, times: int, most: float) -> float:
    return min(most, least * 2.0 ** min(times, 10))


def _pace(every: float | None) -> float:
    """A factor for all times above: below 1 where checks run more than once a second."""
    return min(1.0, every or 1.0)
