"""What one backend has room for, and whether a request may go there at all: told by its state as it is now."""

from __future__ import annotations

from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.routing.plan import unavailable


def whole(state: BackendState) -> int:
    """Slots that gateways may use there together: all but those that strangers hold; never none."""
    foreign = state.foreign
    return state.slots if not foreign else max(1, state.slots - foreign)


def room(state: BackendState) -> int:
    """Slots that we may use: of all that gateways may use at most our share. None only while Redis has just gone and
    others held more than theirs."""
    most = whole(state)
    if state.shared.alone is not None:
        return min(most, state.shared.alone)
    return most if state.shared.sharers == 1 else max(1, min(most, state.slots // state.shared.sharers))


def is_full(state: BackendState, weight: int) -> bool:
    """Is there no room for so much more?"""
    most = room(state)
    return not most or state.under_way + min(weight, most) > most


def is_open(state: BackendState, now: float) -> bool:
    """May a request be sent there now, if there is room?"""
    health = state.health
    return state.cooldown_until <= now and (health.state is State.READY or health.usable(now))


def looks(state: BackendState, now: float) -> str:
    """What a plan would make of it, in a word: another word = another plan."""
    if state.cooldown_until > now:
        return "cooldown"
    health = state.health
    if not health.usable(now):
        return "trial" if health.trial else unavailable(state, now)[0]
    if health.state is not State.SUSPECT:
        return "usable"
    return "due" if health.due(now) else "suspect"
