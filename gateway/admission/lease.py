"""A lease: the slots of one backend that one attempt holds."""

from __future__ import annotations

import time

from gateway.admission.scheduler import Scheduler
from gateway.admission.waiter import Held
from gateway.domain.health_state import State
from gateway.domain.request import InferenceRequest
from gateway.routing.plan import Candidate

_TRIED_AGAIN = (State.DOWN, State.MISCONFIGURED)  # and never probed: by one request after a pause


class Lease:
    """Held from before an attempt until its upstream body has ended or its socket is closed. Releasing twice is one
    release. `served` False: the attempt did not answer, so its time tells nothing about others."""

    __slots__ = ("_held", "_scheduler", "_tokens", "_trial", "candidate", "served")

    def __init__(self, scheduler: Scheduler, candidate: Candidate, held: Held, request: InferenceRequest) -> None:
        state = candidate.state
        self.candidate = candidate
        self.served = True
        self._scheduler = scheduler
        self._held: Held | None = held
        self._tokens = state.ratio.probably(request.known_text_bytes)
        state.prompt_tokens += self._tokens
        health = state.health
        # On trial: half-open, or due for it, or down and (never probed) tried again after its pause.
        self._trial = health.state is not State.READY and (
            health.half_open or health.state in _TRIED_AGAIN or health.due(held.since)
        )
        if self._trial:
            health.trial = True

    def release(self) -> None:
        held = self._held
        if held is None:
            return
        self._held = None
        state = held.state
        state.prompt_tokens -= self._tokens
        if self._trial:
            state.health.trial = False
        self._scheduler.release(held, time.monotonic(), served=self.served)
