"""Which candidates of a plan come later because their models have to be loaded. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeVar

from gateway.domain.backend import BackendState

AWAITED = 30.0  # seconds of a load that a request waits for, although another backend is ready


class _Candidate(Protocol):
    @property
    def state(self) -> BackendState: ...

    @property
    def doubtful(self) -> bool: ...


C = TypeVar("C", bound=_Candidate)


def loads_first(state: BackendState) -> bool:
    """Must it load its model before it can serve, as far as its list of loaded models tells?"""
    return state.reported.loaded is False and state.traits.probe is not None and state.traits.probe.held is not None


def behind_ready(
    candidates: Sequence[C], outcomes: Mapping[str, str], when_loading: Literal["auto", "wait", "next"], now: float
) -> tuple[list[C], list[BackendState]]:
    """(the candidates, with those whose load is not worth waiting for behind the last local one that is ready now;
    those that were moved). `outcomes`: backend -> how its attempt failed."""
    ready = [
        index
        for index, c in enumerate(candidates)
        if not (loads_first(c.state) or c.state.backend.cloud or c.doubtful or c.state.name in outcomes)
    ]
    last = ready[-1] + 1 if ready else 0
    later = [c for c in candidates[:last] if loads_first(c.state) and _is_left(c.state, when_loading, now)]
    return [*(c for c in candidates[:last] if c not in later), *later, *candidates[last:]], [c.state for c in later]


def _is_left(state: BackendState, when_loading: Literal["auto", "wait", "next"], now: float) -> bool:
    if when_loading != "auto":
        return when_loading == "next"
    left = state.load_left(now)
    return left is not None and left > AWAITED
