"""The first choice: the backend that comes first in the plan, found without making the plan.

Most requests are served by a ready backend of the first step, at the first attempt, with a slot that is free. They need
neither the later steps nor the reasons against them. Whatever is not that plain is left to `make_plan`, whose first
candidate this always is (tests/routing/test_first_choice.py). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.config.snapshot import Alias, Client
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.domain.request import InferenceRequest
from gateway.domain.tokens import room_needed, surely_fits
from gateway.routing.balance import best, order
from gateway.routing.needs import NO_NEEDS, Needs, needs_of
from gateway.routing.placements import Session
from gateway.routing.plan import Candidate, adapted, loads_first
from gateway.routing.why_not import declines_media, why_not


def first_choice(
    alias: Alias,
    states: Mapping[str, BackendState],
    request: InferenceRequest,
    now: float,
    *,
    local_only: bool,
    turn: int,
    session: Callable[[], Session],
    client: Client | None,
) -> Candidate | None:
    """The first candidate of the plan, as long as no budget applies to the request. None if the plan has to be made."""
    if request.endpoint.pools:  # the chain binds its members together
        return None
    if request.own is not None and request.own.left_out:  # who runs what others are not told of comes first
        return None
    needs = needs_of(request, alias, client)
    room = room_needed(request, alias.min_max_tokens)
    usable: list[BackendState] = []
    for name in alias.steps[0]:
        state = states[name]
        if state.backend.cloud or state.pool is not None or loads_first(state):
            return None
        if _surely_serves(state, request, needs, room, now):
            usable.append(state)
        elif why_not(state, request, needs, room, now, local_only=local_only) is None:
            return None
    if not usable:
        return None
    if needs is NO_NEEDS:
        return Candidate(best(usable, alias.balance, turn, session, now), 0)
    candidate = adapted(order(usable, alias.balance, turn, session, now), 0, needs, now, None)[0]
    return None if candidate.doubtful else candidate


def _surely_serves(state: BackendState, request: InferenceRequest, needs: Needs, room: int, now: float) -> bool:
    """Can this backend serve the request, beyond doubt? (Where this is False, `why_not` decides.)"""
    if state.health.state is not State.READY or state.cooldown_until > now or state.facts.lacks or state.absent:
        return False
    if request.endpoint.name not in state.traits.endpoints:
        return False
    window = state.window(now)
    if window is not None and not surely_fits(request.prompt_bytes, room, window):
        return False  # the backend may have to count the prompt
    if needs is NO_NEEDS and not declines_media(state.backend):
        return True
    return why_not(state, request, needs, room, now, local_only=False) is None
