"""With which needs a backend gets no request of an alias, for a fleet in which every backend is ready. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.request import InferenceRequest
from gateway.domain.token_ratio import room_needed
from gateway.routing.needs import Resort, resort_of
from gateway.routing.plan import make_plan
from gateway.routing.serving import Need, request_with, with_tokens
from gateway.routing.why_not import SkipReason


@dataclass(frozen=True, slots=True)
class UnmetNeed:
    """Why a backend gets no requests with a need. `rescued`: the mode of `on_unsupported` in which it gets them if
    no other backend can serve."""

    why: SkipReason
    rescued: Resort | None = None


def unmet_needs(alias: Alias, states: Mapping[str, BackendState], now: float) -> dict[str, dict[Need, UnmetNeed]]:
    """Backend -> the needs with which it gets no request of this alias, and why; `{}` = it gets every request."""
    found: dict[str, dict[Need, UnmetNeed]] = {name: {} for step in alias.steps for name in step}
    largest = max((states[name].window(now) or 0 for name in found), default=0)
    for need in Need:
        request = request_with(need)
        if need is Need.LONG:
            with_tokens(request, max(0, largest - room_needed(request, alias.min_max_tokens)), states)
        rescued = _rescued(alias, states, request, now)
        for skip in make_plan(alias, states, request, now).skipped:
            name = skip.state.name
            found[name][need] = UnmetNeed(SkipReason(skip.kind, skip.reason, skip.lacks), rescued.get(name))
    return found


def _rescued(
    alias: Alias, states: Mapping[str, BackendState], request: InferenceRequest, now: float
) -> dict[str, Resort]:
    resort = resort_of(alias, None) if request.tools else None
    if resort is None:
        return {}
    return {c.state.name: resort for c in make_plan(alias, states, request, now, resort=resort).candidates}
