"""What an attempt that did not answer teaches about its backend. Failures are weighed elsewhere (blame.py)."""

from __future__ import annotations

from gateway.backend import BackendState
from gateway.routing.request import InferenceRequest
from gateway.upstream.answers import Verdict

COOLDOWN = 5.0  # seconds, for a 429 that names none


def learn(state: BackendState, request: InferenceRequest, verdict: Verdict, now: float) -> bool:
    """Take the verdict into the backend's state. True = the same request can be sent there again, with a limit that
    what was learned makes smaller."""
    if verdict.kind == "cooldown":
        state.cool_down(COOLDOWN if verdict.retry_after is None else verdict.retry_after, now)
    if verdict.lack is not None and verdict.kind != "unserved":  # that a harmless request has to confirm (blame.py)
        state.learn_lack(verdict.lack, now)
    if verdict.kind != "too_long":
        return False
    news = _learn_window(state, verdict.window)
    if verdict.prompt_tokens is not None and verdict.limit_only:
        news = state.ratio.told(request.prompt_bytes, verdict.prompt_tokens) or news
    return news and verdict.limit_only


def _learn_window(state: BackendState, window: int | None) -> bool:
    """A window that the backend told in a refusal; True when it was news."""
    known = state.context
    if window is None or (known is not None and known <= window):
        return False
    state.observed_context = window
    return True
