"""The states of a backend's health, and a change from one to another."""

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
    PARKED = "parked"  # `run: on_demand`, and not running


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
