"""What a backend can be, in one word, and the event of a change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    UNKNOWN = "unknown"  # not looked at yet: tried when asked for
    WARMING = "warming"  # it is starting, or there again and not yet proved
    READY = "ready"
    BUSY = "busy"  # ready, and all that it can run at a time is running
    SUSPECT = "suspect"  # failed lately, or back on trial: tried after the others
    DOWN = "down"
    DRAINING = "draining"  # an operator's wish, or taken out of routes.yaml: what runs there ends, nothing new comes
    MISCONFIGURED = "misconfigured"  # it answers, but not to our key or our model name
    PARKED = "parked"  # run: on_demand, and not there


WELL = frozenset({State.READY, State.BUSY})
SERVING = frozenset({State.UNKNOWN, State.READY, State.BUSY, State.SUSPECT})


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state, as an event with its evidence."""

    backend: str
    before: State
    after: State
    reason: str
    at: float
