"""How many tokens a prompt has, guessed from its bytes; what room that leaves; how long silence may last.

Bytes per token differ by model and by language, so the ratio is learned per backend from the usage it reports. Until
then a wide prior is used: a prompt is only called too long when it is so by the most generous guess, and an answer is
only promised the room that the most careful one leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.routing.request import IMAGE_TOKENS, InferenceRequest

RATIO_LEAST, RATIO_MOST = 1.5, 6.0  # bytes per token, whatever was observed
PRIOR_DENSE, PRIOR_USUAL, PRIOR_SPARSE = 2.5, 3.6, 4.8
LEARN_FROM = 2048  # shorter prompts are mostly chat template
MIN_ROOM = 1024  # tokens of answer that a window must leave when the client asked for as much or did not say
ANSWER_GUESS = 8192  # tokens of an answer whose length nobody limited
RATE_TIMES = 3.0  # what was learned held for other prompts, and beside other requests
PREFILL_PRIOR, DECODE_PRIOR = 300.0, 10.0  # tokens per second, before anything is learned: the slowest the posts saw


class Estimate(NamedTuple):
    """Prompt tokens: at least, probably, at most."""

    low: int
    mid: int
    high: int


@dataclass(slots=True)
class TokenRatio:
    """Bytes per token of one backend's tokenizer; None until learned."""

    value: float | None = None
    seen: int = 0

    def due(self, prompt_bytes: int) -> bool:
        """Is this answer worth learning from? The first is, then one in sixteen: it costs a look for pictures."""
        if prompt_bytes < LEARN_FROM:
            return False
        self.seen += 1
        return self.value is None or self.seen % 16 == 0

    def learn(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """From one answered request without pictures; moves a fifth of the way."""
        if prompt_bytes < LEARN_FROM or prompt_tokens <= 0:
            return
        seen = min(RATIO_MOST, max(RATIO_LEAST, prompt_bytes / prompt_tokens))
        self.value = seen if self.value is None else self.value * 0.8 + seen * 0.2

    def told(self, prompt_bytes: int, prompt_tokens: int) -> bool:
        """A backend that refused says how long the prompt is: that counts more than what was seen before."""
        if prompt_bytes < LEARN_FROM or prompt_tokens <= 0:
            return False
        self.value = min(RATIO_MOST, max(RATIO_LEAST, prompt_bytes / prompt_tokens))
        return True

    def probably(self, prompt_bytes: int) -> int:
        """Prompt tokens, probably; pictures not counted."""
        return int(prompt_bytes / (self.value or PRIOR_USUAL))

    def estimate(self, prompt_bytes: int, images: int = 0) -> Estimate:
        extra = images * IMAGE_TOKENS
        if self.value is None:
            low, mid, high = (prompt_bytes / r for r in (PRIOR_SPARSE, PRIOR_USUAL, PRIOR_DENSE))
        else:
            mid = prompt_bytes / self.value
            low, high = mid * 0.9, mid * 1.1
        return Estimate(int(low) + extra, int(mid) + extra, int(high) + 1 + extra)


def room_needed(request: InferenceRequest, min_max_tokens: int | None) -> int:
    """Answer tokens that a window must leave for this request: what it asked, but no more than is fair to insist on."""
    if request.endpoint.limits == ():
        return 0
    asked = request.limit()
    floor = max(MIN_ROOM, min_max_tokens or 0)
    return MIN_ROOM if asked is None else min(max(asked, min_max_tokens or 0), floor)


def surely_fits(prompt_bytes: int, room: int, window: int) -> bool:
    """Told without an estimate, as it can be for most requests: even the densest text is no more tokens than this.
    (Nor are pictures sent as base64; those sent as a link are left to the backend's own judgement.)"""
    return prompt_bytes / RATIO_LEAST * 1.1 + 1 + room <= window


def fits(estimate: Estimate, room: int, window: int | None, *, cuts_silently: bool) -> bool:
    """May this prompt be sent there? A server that cuts silently (Ollama) must be sure to hold it; of one that refuses,
    the refusal is the better judge."""
    if window is None:
        return True
    return (estimate.high if cuts_silently else estimate.low) + room <= window


def clamp(limit: int, estimate: Estimate, window: int | None, *, server_clamps: bool) -> int:
    """The answer limit to send: what was asked, or what the window leaves.

    vLLM >= 0.32 takes care of prompt + answer itself and only refuses a limit above the whole window
    (`server_clamps`); others refuse the sum.
    """
    if window is None:
        return limit
    room = window if server_clamps else int((window - estimate.high) * 0.98)
    return max(1, min(limit, room))


def silence_budget(
    request: InferenceRequest, prompt_tokens: int, prefill: float | None = None, decode: float | None = None
) -> float:
    """Seconds a backend that holds `prompt_tokens` of prompts may stay silent before its first event: a minute, their
    prefill, and for an answer that comes in one piece its decoding.

    `prefill`, `decode`: its learned rates in tokens per second; three times as long as they say. None = not learned.
    (An engine that stands still is found sooner than this, by its metrics: health/progress.py.)
    """
    answer = 0 if request.stream or not request.endpoint.limits else request.limit() or ANSWER_GUESS
    computing = RATE_TIMES * prompt_tokens / prefill if prefill else prompt_tokens / PREFILL_PRIOR
    answering = RATE_TIMES * answer / decode if decode else answer / DECODE_PRIOR
    return 60.0 + computing + answering
