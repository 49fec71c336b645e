"""Whether a parked backend is started for a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StartDecision:
    """`refusal`: empty if it is started, after those of `stops` were stopped. `stops`: backend -> for how long it has
    been idle (seconds), the longest first. `notes`: remarks on the start, for the operator. `wait`: seconds after which
    the refusal may end by itself; None if not known."""

    refusal: str = ""
    stops: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    wait: float | None = None
