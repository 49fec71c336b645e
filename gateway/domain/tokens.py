"""Tokens: estimates of a prompt's from its bytes, of the room for the answer, and of the time until the first event;
what requests need of a memory that slots share; and the counts in a backend's answer. Pure.

Bytes per token differ by model and by language, so the ratio is learned from the usage that a backend reports: per
backend and sender, so that one client's unusual prompts do not affect the others. Until then a wide prior is used: a
prompt is too long only if its lowest estimate is, and an answer gets only the room that the highest estimate leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import msgspec

from gateway.domain.request import IMAGE_TOKENS, InferenceRequest

RATIO_LEAST, RATIO_MOST = 1.5, 6.0  # bytes per token: limits of what is learned
PRIOR_DENSE, PRIOR_USUAL, PRIOR_SPARSE = 2.5, 3.6, 4.8
LEARN_FROM = 2048  # shorter prompts are mostly chat template
SENDERS_MOST = 64  # senders for which an own ratio is kept
MIN_ROOM = 1024  # tokens of answer that a window must leave when the client asked for as many or set no limit
ANSWER_GUESS = 8192  # tokens of an answer without a limit
TEMPLATE = 256  # tokens that a chat template may add to a prompt
RATE_TIMES = 3.0  # margin on a learned rate: it was measured with other prompts and other load
PREFILL_PRIOR, DECODE_PRIOR = 300.0, 10.0  # tokens per second until a rate is learned: the slowest that were reported


class Estimate(NamedTuple):
    """Prompt tokens: at least, probably, at most."""

    low: int
    mid: int
    high: int


@dataclass(slots=True)
class TokenRatio:
    """Bytes per token of one backend's tokenizer. `value`: the median over the senders, None until learned. `own`: the
    ratio of each sender's prompts, the latest sender last."""

    value: float | None = None
    seen: int = 0
    own: dict[str, float] = field(default_factory=dict)

    def due(self, prompt_bytes: int, sender: str = "") -> bool:
        """Is the ratio to be learned from this answer? From a sender's first one, then from one in sixteen, because the
        body has to be searched for images first."""
        due = self.is_due(prompt_bytes, sender)
        if prompt_bytes >= LEARN_FROM:
            self.seen += 1
        return due

    def is_due(self, prompt_bytes: int, sender: str = "") -> bool:
        """What `due` returns, without counting this answer."""
        return prompt_bytes >= LEARN_FROM and (sender not in self.own or self.seen % 16 == 15)

    def learn(self, prompt_bytes: int, prompt_tokens: int, sender: str = "") -> None:
        """Learn from one answered request without images, as a moving average (weight 0.2)."""
        if prompt_bytes < LEARN_FROM or prompt_tokens <= 0:
            return
        seen = min(RATIO_MOST, max(RATIO_LEAST, prompt_bytes / prompt_tokens))
        before = self.own.pop(sender, None)
        self.own[sender] = seen if before is None else before * 0.8 + seen * 0.2
        if len(self.own) > SENDERS_MOST:
            del self.own[next(iter(self.own))]
        self.value = median(self.own.values())

    def probably(self, prompt_bytes: int) -> int:
        """The probable number of prompt tokens, without images."""
        return int(prompt_bytes / (self.value or PRIOR_USUAL))

    def estimate(self, prompt_bytes: int, images: int = 0, sender: str = "") -> Estimate:
        """The estimate for a prompt of this sender. Ratios of other senders do not narrow it."""
        extra = images * IMAGE_TOKENS
        ratio = self.own.get(sender) if self.own else self.value
        if ratio is None:
            low, mid, high = (prompt_bytes / r for r in (PRIOR_SPARSE, PRIOR_USUAL, PRIOR_DENSE))
        else:
            mid = prompt_bytes / ratio
            low, high = mid * 0.9, mid * 1.1
        return Estimate(int(low) + extra, int(mid) + extra, int(high) + 1 + extra)


def room_needed(request: InferenceRequest, min_max_tokens: int | None) -> int:
    """Answer tokens that a window must leave for this request: what it asked for, but not more than MIN_ROOM or the
    alias' `min_max_tokens`."""
    if request.endpoint.limits == ():
        return 0
    asked = request.limit()
    floor = max(MIN_ROOM, min_max_tokens or 0)
    return MIN_ROOM if asked is None else min(max(asked, min_max_tokens or 0), floor)


def surely_fits(prompt_bytes: int, room: int, window: int) -> bool:
    """Does the prompt fit even at the lowest ratio of bytes per token? Most requests do, and need no estimate. (Images
    sent as base64 take fewer tokens than their bytes as text; the backend judges those sent as a link.)"""
    return prompt_bytes / RATIO_LEAST * 1.1 + 1 + room <= window


def fits(estimate: Estimate, room: int, window: int | None, *, careful: bool) -> bool:
    """May this prompt be sent to a server with this window? A server that cuts silently (Ollama), or computes on beyond
    its window (mlx), gets only prompts that surely fit (`careful`); one that refuses gets those that possibly fit,
    since its refusal is exact."""
    if window is None:
        return True
    return (estimate.high if careful else estimate.low) + room <= window


def clamp(limit: int, estimate: Estimate, window: int | None, *, server_clamps: bool) -> int:
    """The answer limit to send: what was asked, or what the window leaves.

    vLLM >= 0.32 clamps the answer itself and refuses only a limit above the whole window (`server_clamps`); other
    servers refuse when prompt + limit exceed the window.
    """
    if window is None:
        return limit
    room = window if server_clamps else int((window - estimate.high) * 0.98)
    return max(1, min(limit, room))


def clamp_again(limit: int, estimate: Estimate, window: int, *, prompt_bytes: int, exact: bool) -> int:
    """The limit for a server that has just refused prompt + limit. `exact`: it reported the prompt's size. Otherwise
    room is reserved for its template, and the lowest ratio of bytes per token is assumed, unless that halves the room
    for the answer: then the high estimate is used, or, where that leaves too little room, the probable one."""
    if exact:
        return clamp(limit, estimate, window, server_clamps=False)
    densest = max(estimate.high, int(prompt_bytes / RATIO_LEAST * 1.1))
    least = MIN_ROOM + TEMPLATE
    careful = window - estimate.high
    room = careful if careful >= least else window - estimate.mid
    if window - densest >= max(least, careful // 2):
        room = window - densest
    return max(1, min(limit, int(room * 0.98) - min(TEMPLATE, room // 4)))


def silence_budget(
    request: InferenceRequest,
    prompt_tokens: int,
    prefill: float | None = None,
    decode: float | None = None,
    *,
    loading: float = 0.0,
) -> float:
    """Seconds a backend that holds `prompt_tokens` of prompts may stay silent before its first event: a minute, their
    prefill, and for an answer that comes in one piece its decoding.

    `loading`: seconds that it may load its model before that. `prefill`, `decode`: its learned rates in tokens per
    second; three times the resulting time is allowed. None = not learned. (A stalled engine is detected earlier than
    this, by its metrics: domain/progress.py.)
    """
    answer = 0 if request.stream or not request.endpoint.limits else request.limit() or ANSWER_GUESS
    computing = RATE_TIMES * prompt_tokens / prefill if prefill else prompt_tokens / PREFILL_PRIOR
    answering = RATE_TIMES * answer / decode if decode else answer / DECODE_PRIOR
    return 60.0 + loading + computing + answering


# -- the memory that all slots of a server share (llama-server's unified KV cache) -------------------------------------
# If the requests need more than it has, the server ends all of them. All numbers are tokens, unless they are slots. A
# request reserves its prompt and the most that its answer may have. Where the client set no limit, the answer gets what
# is left of an even share of the pool, and at least a quarter of a share; that is then sent as its limit, because an
# answer without end would take the answers of all others with it.

MARGIN = 16  # a sixteenth of the pool is kept for what no request reserves: canaries, and prompts that count more
ANSWER_PART = 4  # an answer without a limit gets at least this part of a share


def share_of(pool: int, slots: int) -> int:
    """What each of the slots has if all are used alike. At least 1."""
    return max(1, usable(pool) // max(1, slots))


def usable(pool: int) -> int:
    return pool - pool // MARGIN


def answer_most(prompt: int, pool: int, slots: int) -> int:
    """The limit of an answer that the client did not limit."""
    share = share_of(pool, slots)
    return max(1, share // ANSWER_PART, share - prompt)


def needed(prompt: int, limit: int | None, answers: int, pool: int, slots: int) -> int:
    """What a request reserves: `answers` sequences continue one prompt, each with `limit` tokens at most (None = the
    client set no limit). Never more than the pool: a request that needs all of it may have it alone."""
    most = answer_most(prompt, pool, slots) if limit is None else limit
    return min(usable(pool), prompt + answers * most)


def has_room(need: int, reserved: int, others: int, pool: int, slots: int) -> bool:
    """May a request that needs so much be sent beside those that have `reserved`, and beside `others`: sequences of
    which nothing else is known, so each counts as a share? Beside nothing it may always be sent."""
    taken = reserved + others * share_of(pool, slots)
    return not taken or taken + need <= usable(pool)


# -- the token counts in a backend's answer, as far as they are plausible ----------------------------------------------
# All usage that is counted, charged or stored is read here. The client gets it as the backend sent it, byte by byte.

COUNT_MOST = 1_000_000_000  # tokens: far more than any window and any batch of prompts


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """Token counts as a backend reported them. `cached` is part of `prompt`, `reasoning` of `completion`."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion


NO_TOKENS = Tokens()


def read_usage(usage: object) -> Tokens:
    """Read OpenAI's usage object. Values that cannot be counts are read as 0."""
    if not isinstance(usage, dict):
        return NO_TOKENS
    of_prompt, of_answer = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    if of_prompt is None and of_answer is None:
        return Tokens(count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens")))
    return Tokens(
        count_of(usage.get("prompt_tokens")),
        count_of(usage.get("completion_tokens")),
        count_of(of_prompt.get("cached_tokens")) if isinstance(of_prompt, dict) else 0,
        count_of(of_answer.get("reasoning_tokens")) if isinstance(of_answer, dict) else 0,
    )


def count_of(value: Any) -> int:
    """A number of tokens. 0 for a value that cannot be one: it is not an int (bool, a subclass of int, is excluded
    too), or negative, or larger than COUNT_MOST."""
    return value if type(value) is int and 0 < value <= COUNT_MOST else 0


def is_beyond_belief(usage: object) -> bool:
    """Is a reported number of prompt or answer tokens impossibly large? Then the real usage is not known."""
    if not isinstance(usage, dict):
        return False
    return _is_too_large(usage.get("prompt_tokens")) or _is_too_large(usage.get("completion_tokens"))


def _is_too_large(value: Any) -> bool:
    return type(value) in (int, float) and value > COUNT_MOST
