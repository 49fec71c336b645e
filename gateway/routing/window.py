"""Does this prompt fit that backend's window, and is it worth to have it counted?"""

from __future__ import annotations

from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import TRAITS
from gateway.domain.request import InferenceRequest, Refusal
from gateway.domain.token_ratio import Estimate, fits, surely_fits


def prompt_estimate(state: BackendState, request: InferenceRequest) -> Estimate:
    """Prompt tokens there: as that backend has counted them, else guessed from the bytes."""
    if (exact := request.exact.get(state.name)) is not None:
        return Estimate(exact, exact, exact)
    guess = state.ratio.estimate(request.prompt_bytes, request.images, request.sender)
    refused = refusal_of(state, request)
    if refused is None or not refused.least:
        return guess
    return Estimate(*(max(tokens, refused.least) for tokens in guess))


def refusal_of(state: BackendState, request: InferenceRequest) -> Refusal | None:
    """What this backend said when it refused this very request for its size."""
    return request.refused.get(state.name) if request.refused is not None else None


def window_for(state: BackendState, request: InferenceRequest) -> int | None:
    """The backend's window; smaller where it told this very request so."""
    window = state.context
    if (refused := refusal_of(state, request)) is None or refused.window is None:
        return window
    return refused.window if window is None else min(window, refused.window)


def tokens(state: BackendState, request: InferenceRequest) -> int:
    """Prompt tokens, probably."""
    return prompt_estimate(state, request).mid


def fits_window(state: BackendState, request: InferenceRequest, room: int) -> bool:
    """Do the prompt and `room` tokens of answer fit the window? Pictures are only looked for when it seems not."""
    window = window_for(state, request)
    if window is None or (not request.exact and surely_fits(request.prompt_bytes, room, window)):
        return True
    cuts = TRAITS[state.backend.engine].cuts_silently
    for _ in range(2):
        if fits(prompt_estimate(state, request), room, window, cuts_silently=cuts):
            return True
        if request.media_measured:
            return False
        request.measure_media()
    return False


def near_limit(state: BackendState, request: InferenceRequest, room: int) -> bool:
    """Is it worth to have the prompt counted (vLLM's /tokenize)? Only where the guess leaves open whether prompt and
    `room` tokens of answer fit, and the prompt is text."""
    window = window_for(state, request)
    if window is None or not TRAITS[state.backend.engine].counts_prompts or state.name in request.exact:
        return False
    if surely_fits(request.prompt_bytes, room, window):
        return False
    request.measure_media()
    if request.images or request.audio:
        return False
    estimate = state.ratio.estimate(request.prompt_bytes, sender=request.sender)
    return estimate.low + room <= window < estimate.high + room
