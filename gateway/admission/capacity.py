"""How many slots of one backend are free, and whether a request may be sent there at all, from its present state."""

from __future__ import annotations

from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.health_state import READY, State
from gateway.domain.request import InferenceRequest
from gateway.domain.tokens import has_room, needed
from gateway.engines.outgoing import outgoing_limits
from gateway.routing.why_not import unavailable
from gateway.routing.window import pool_prompt


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


def is_full(state: BackendState, weight: int, tokens: int = 0) -> bool:
    """Would `weight` more sequences, which reserve `tokens`, exceed the capacity?"""
    most = capacity(state)
    return not most or state.under_way + min(weight, most) > most or not pool_has_room(state, tokens)


def tokens_needed(state: BackendState, request: InferenceRequest, alias: Alias) -> int:
    """The tokens that this request reserves of the memory that the backend's slots share; 0 = they share none."""
    pool = state.pool
    if pool is None:
        return 0
    limits = [limit for limit in outgoing_limits(request, alias, state) if type(limit) is int and limit >= 0]
    answers = request.choices if request.endpoint.limits else 0
    return needed(pool_prompt(state, request), max(limits, default=None), answers, pool, state.slots)


def pool_has_room(state: BackendState, tokens: int) -> bool:
    """Do so many tokens fit into the memory that the backend's slots share? What other clients and other gateways use
    of it is not known, so each of their sequences counts as an even share."""
    pool = state.pool
    if pool is None or not tokens:
        return True
    others = state.foreign + state.under_way - state.inflight
    return has_room(tokens, state.reserved_tokens, others, pool, state.slots)


def is_open(state: BackendState, now: float) -> bool:
    """May a request be sent there now, provided that a slot is free?"""
    health = state.health
    return state.cooldown_until <= now and (health.state is READY or health.usable(now))


def serves_now(state: BackendState, now: float) -> bool:
    """May a request be sent there, with good hope?"""
    return is_open(state, now) and not state.health.avoided


def availability_key(state: BackendState, now: float) -> str:
    """Availability key of a backend. When it changes, requests that wait for this backend are planned again."""
    if state.cooldown_until > now:
        return "cooldown"
    health = state.health
    if not health.usable(now):
        return "trial" if health.trial else unavailable(state, now)[0]
    if health.state is not State.SUSPECT:
        return "usable"
    if health.silent:
        return "silent"
    return "due" if health.due(now) else "suspect"
