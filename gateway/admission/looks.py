"""When an engine is looked at because requests wait for it: sequences of others take slots, and what the last look saw
of them may be over; or it may bear more than the slots that were learned so far. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.domain.backend import BackendState

FRESH = 1.0  # seconds after a look, or a sign of life, for which it may refuse a request
EVERY = 0.5  # seconds between two looks while requests wait
LOOK_MOST, CHECK_MOST = 1.0, 4.0  # seconds that a request which would be refused waits for looks, for checks

# Begins a look at the backend's engine, or joins the one under way; None = its server shows nothing of its engine.
Look = Callable[[BackendState], Awaitable[None] | None]


def may_be_over(state: BackendState, now: float) -> bool:
    """Do sequences of others take slots that nobody has seen in the last second?"""
    return state.foreign > 0 and state.progress.last is not None and state.progress.age(now) > FRESH


def may_hang(state: BackendState, now: float) -> bool:
    """Has nothing come for a second from a backend that has requests of ours? A queue there may be full of requests
    that nobody answers."""
    health = state.health
    return state.engine_inflight > 0 and now - state.sign_of_life > FRESH and health.usable(now) and not health.avoided


def look_due(state: BackendState, now: float) -> bool:
    """Is a look due, now that requests wait for this backend?"""
    wanted = state.foreign > 0 or state.slots_to_find > 0
    return wanted and now - state.progress.looked_at > EVERY
