"""Does a prompt fit a backend's window, and is it worth having the backend count it? Pure."""

from __future__ import annotations

from gateway.domain.backend import BackendState
from gateway.domain.endpoints import EMBEDDINGS
from gateway.domain.pooled import is_cut_to_fit
from gateway.domain.request import NO_MEDIA, InferenceRequest, Media, Refusal
from gateway.domain.tokens import TEMPLATE, Estimate, fits, share_of, surely_fits


def prompt_estimate(state: BackendState, request: InferenceRequest) -> Estimate:
    """Prompt tokens on this backend: as it has counted them, else estimated from the text's bytes and the pictures."""
    return _estimate(state, request, request.media)


def text_estimate(state: BackendState, request: InferenceRequest) -> Estimate:
    """The estimate without looking for pictures: their base64 counts as text, which nearly always gives more tokens."""
    return _estimate(state, request, NO_MEDIA)


def _estimate(state: BackendState, request: InferenceRequest, media: Media) -> Estimate:
    if (exact := request.exact.get(state.name)) is not None:
        return Estimate(exact, exact, exact)
    guess = state.ratio.estimate(request.prompt_bytes - media.bytes, media.pictures, request.sender)
    refused = refusal_of(state, request)
    if refused is None or not refused.least:
        return guess
    return Estimate(*(max(tokens, refused.least) for tokens in guess))


def refusal_of(state: BackendState, request: InferenceRequest) -> Refusal | None:
    """The numbers with which this backend refused this request as too long; None if it did not."""
    return request.refused.get(state.name) if request.refused is not None else None


def window_for(state: BackendState, request: InferenceRequest, now: float) -> int | None:
    """The backend's window; the smaller one that it reported to this request, if any."""
    window = state.window(now)
    if (refused := refusal_of(state, request)) is None or refused.window is None:
        return window
    return refused.window if window is None else min(window, refused.window)


def tokens(state: BackendState, request: InferenceRequest) -> int:
    """The probable number of prompt tokens."""
    return prompt_estimate(state, request).mid


def pool_prompt(state: BackendState, request: InferenceRequest) -> int:
    """The most prompt tokens that the request may have, for a backend whose slots share a memory (`pool`)."""
    most = text_estimate(state, request).high
    if state.pool is not None and most > share_of(state.pool, state.slots):  # pictures as text may be the reason
        most = prompt_estimate(state, request).high
    return most + TEMPLATE if request.tools and state.name not in request.exact else most


def known_tokens(state: BackendState, request: InferenceRequest) -> int:
    """The probable number of prompt tokens without reading the body: pictures count as such only if they were looked
    for already."""
    return _estimate(state, request, request.known_media).mid


def fits_window(state: BackendState, request: InferenceRequest, room: int, now: float) -> bool:
    """Do the prompt and `room` tokens of answer fit the window? Pictures are only looked for when it seems not."""
    window = window_for(state, request, now)
    if window is None or (not request.exact and surely_fits(request.prompt_bytes, room, window)):
        return True
    embeds = request.endpoint is EMBEDDINGS
    if request.endpoint.pools and (not embeds or _has_many_texts(request) or is_cut_to_fit(request.fields)):
        return True  # each of many texts or pairs has the window to itself, or they are cut
    # Where nothing but this check bounds the prompt. A text to embed is refused (Ollama's `truncate`), not cut.
    unsafe = (state.traits.cuts_silently or state.traits.computes_beyond) and not embeds
    if fits(text_estimate(state, request), room, window, careful=unsafe):
        return True
    return request.media is not NO_MEDIA and fits(prompt_estimate(state, request), room, window, careful=unsafe)


def _has_many_texts(request: InferenceRequest) -> bool:
    given = request.fields.get("input")
    return given is not None and bytes(memoryview(given)[:1]) == b"["


def near_limit(state: BackendState, request: InferenceRequest, room: int, now: float) -> bool:
    """Is it worth having the server count the prompt? Only if the estimate leaves open whether prompt and
    `room` tokens of answer fit, and the prompt is text."""
    window = window_for(state, request, now)
    if window is None or state.traits.counts.of(request.endpoint.name) is None or state.name in request.exact:
        return False
    if surely_fits(request.prompt_bytes, room, window) or request.media is not NO_MEDIA:
        return False
    estimate = state.ratio.estimate(request.prompt_bytes, sender=request.sender)
    return estimate.low + room <= window < estimate.high + room
