"""How long a backend may be silent before the first event of its answer."""

from __future__ import annotations

import time
from math import inf

from gateway.admission.capacity import capacity
from gateway.domain.backend import BackendState
from gateway.domain.request import InferenceRequest
from gateway.domain.request_timer import RequestTimer
from gateway.domain.tokens import silence_budget


def expect_first(timer: RequestTimer, state: BackendState, request: InferenceRequest) -> None:
    """Arm the silence budget of the time before the first event of a backend's answer, and the total one, for a request
    that was sent when the timer last `heard`."""
    timeouts, progress = state.backend.timeouts, state.progress
    if progress.last is not None:
        # The engine's counters show whether it works, also on requests in its own queue and on tokens not sent yet.
        timer.excuse = lambda: max(state.last_event, progress.moved_at)
    elif state.inflight > capacity(state):
        # The backend has more requests than slots, so this one may wait inside: progress of the others counts.
        timer.excuse = lambda: state.last_event
    loading = 0.0
    if state.traits.probe is not None and state.traits.probe.held is not None and state.reported.loaded is not None:
        excuse, latest = timer.excuse, timer.heard + timeouts.load
        timer.excuse = lambda: max(excuse() if excuse else 0.0, min(latest, last_unloaded(state)))
    elif state.loads_on_demand:
        loading = timeouts.load  # it does not tell whether it loads
    budget = silence_budget(request, state.prompt_tokens, progress.prefill, progress.decode, loading=loading)
    timer.budget = timeouts.first_byte or budget
    timer.total_at = inf if timeouts.total is None else timer.heard + timeouts.total


def last_unloaded(state: BackendState) -> float:
    """When its model was last not loaded: the request cannot have been computed before. Monotonic seconds."""
    return time.monotonic() if state.load is not None else state.unloaded_at
