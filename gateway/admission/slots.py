"""Slots: room for running sequences on a backend, counted. A request weighs n x prompts, at most all the slots."""

from __future__ import annotations

import time

from gateway.fleet import BackendState
from gateway.health.state import State
from gateway.routing.request import InferenceRequest


class Slot:
    """Held from before an attempt until its upstream body has ended or its socket is closed. Releasing twice is one
    release."""

    __slots__ = ("_held", "_state", "_tokens", "_trial", "_weight")

    def __init__(self, state: BackendState, request: InferenceRequest) -> None:
        self._state = state
        self._weight = min(request.choices, state.slots)
        self._tokens = state.ratio.probably(request.prompt_bytes)
        self._held = True
        state.inflight += self._weight
        state.prompt_tokens += self._tokens
        health = state.health
        # On trial: half-open, or due for it, or down and (never probed) tried again after its pause.
        self._trial = health.state is not State.READY and (
            health.half_open or health.state is State.DOWN or health.due(time.monotonic())
        )
        if self._trial:
            health.trial = True

    def release(self) -> None:
        if not self._held:
            return
        self._held = False
        self._state.inflight -= self._weight
        self._state.prompt_tokens -= self._tokens
        if self._trial:
            self._state.health.trial = False
