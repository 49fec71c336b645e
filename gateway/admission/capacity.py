"""How many slots of one backend are free, and whether a request may be sent there at all, from its present state."""

from __future__ import annotations

from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.routing.plan import unavailable


def total_capacity(state: BackendState) -> int:
    """Slots that all gateways together may use: those that no other client of the engine holds. At least 1."""
    foreign = state.foreign
    return state.slots if not foreign else max(1, state.slots - foreign)


def capacity(state: BackendState) -> int:
    """Slots that this gateway may use: its share of what all gateways may use. 0 only for the first seconds without
    Redis, while other gateways still hold more than their share."""
    most = total_capacity(state)
    if state.shared.alone is not None:
        return min(most, state.shared.alone)
    return most if state.shared.sharers == 1 else max(1, min(most, state.slots // state.shared.sharers))


def is_full(state: BackendState, weight: int) -> bool:
    """Would `weight` more sequences exceed the capacity?"""
    most = capacity(state)
    return not most or state.under_way + min(weight, most) > most


def is_open(state: BackendState, now: float) -> bool:
    """May a request be sent there now, provided that a slot is free?"""
    health = state.health
    return state.cooldown_until <= now and (health.state is State.READY or health.usable(now))


def availability_key(state: BackendState, now: float) -> str:
    """Availability key of a backend. When it changes, requests that wait for this backend are planned again."""
    if state.cooldown_until > now:
        return "cooldown"
    health = state.health
    if not health.usable(now):
        return "trial" if health.trial else unavailable(state, now)[0]
    if health.state is not State.SUSPECT:
        return "usable"
    return "due" if health.due(now) else "suspect"
