"""Detects an engine that makes no progress, from the counters of vLLM's `/metrics` (read in
gateway/engines/vllm.py). A hung engine still answers `/metrics` and `/health`. Pure.

The token counters count generated tokens, so they do not change while only prompts are computed; the use of the KV
cache changes with every step even then. An engine where neither changes, and which streams nothing to us, makes no
progress. How long that is tolerated depends on its work: short between two tokens, longer while long prompts are
computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from gateway.domain.tokens import PREFILL_PRIOR

SILENCE_LEAST = 20.0  # seconds without progress that are always tolerated
PREFILL_TIMES = 3.0  # tolerated factor between the actual and the expected time of a prefill
DEAF = 15.0  # seconds without an answer to a look that the engine itself has to answer
STALE = 30.0  # seconds after which unchanged counters are ignored while none of our requests run on it
LEARN_FROM = 1024  # prompt tokens between two samples from which a rate is learned: fewer are mostly overhead
RATE_LEAST, RATE_MOST = 1.0, 100_000.0  # tokens per second: limits of what is learned
LOOKS_AGREE = 1.0  # seconds between two looks that have to agree before more sequences of others are counted
FOREIGN_PROMPT = 32_768  # tokens that the prompt of a request from outside the gateway is assumed to have


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of an engine's metrics; all counts are since its start. `at`: the caller's seconds. `prefilled` and
    `prefill_seconds` are of finished requests and include cached prompt tokens (`hits` of `queries` looked up).
    `accepted`: of the `drafts` of speculative decoding, how many were right at each position; `drafted_tokens` and
    `accepted_tokens`: of all positions together. `sleep_level`: 0 = awake; None = not reported. `steps`: anything
    that changes with each step of the engine, where the other counts do not. `first_seconds`: from the arrival of
    requests to their first tokens (`firsts`), all together."""

    at: float
    running: float = 0.0
    waiting: float = 0.0
    generated: float = 0.0
    prompted: float = 0.0
    kv: float = 0.0
    hits: float = 0.0
    firsts: float = 0.0
    finished: float = 0.0
    prefilled: float = 0.0
    prefill_seconds: float = 0.0
    gaps: float = 0.0
    gap_seconds: float = 0.0
    queries: float = 0.0
    drafts: float = 0.0
    drafted_tokens: float = 0.0
    accepted_tokens: float = 0.0
    accepted: tuple[float, ...] = ()
    sleep_level: float | None = None
    steps: float = 0.0
    preemptions: float = 0.0
    first_seconds: float = 0.0

    def begins_anew(self, before: Sample) -> bool:
        """Is this one of a new process? Then counts that only grow are smaller."""
        return self.finished < before.finished or self.generated < before.generated

    def moved_from(self, before: Sample) -> bool:
        """Has the engine made progress in between? (Requests that arrive are not progress.)"""
        return (self.generated, self.prompted, self.kv, self.firsts, self.finished, self.steps) != (
            before.generated, before.prompted, before.kv, before.firsts, before.finished, before.steps
        )  # fmt: skip


class Work(NamedTuple):
    """Our requests on one engine. `waiting`: requests that wait for its next bytes (not for their own client). `since`:
    of those, the earliest time of the last bytes, or of sending. `without_token`: requests that got no token yet;
    `tokens`: the prompt tokens of these. `held`: all our sequences on the engine."""

    waiting: int = 0
    since: float = 0.0
    newest: float = 0.0  # when the latest request without a token was sent
    without_token: int = 0
    tokens: int = 0
    held: int = 0
    last_received: float = 0.0  # when bytes for any of our requests last arrived


IDLE = Work()


class Progress:
    """What the samples of one engine add up to. `last`: the latest; None = it has no metrics, or none yet. `moved_at`:
    when it last made progress; 0 = not known. `looked_at`: when it was last looked at, answered or not. `prefill`:
    prompt tokens per second; `decode`: answer tokens per second of one sequence; both None until learned."""

    __slots__ = (
        "_clean",
        "_deaf_since",
        "_foreign",
        "_foreign_at",
        "_hits",
        "_lost",
        "_raw_foreign",
        "decode",
        "last",
        "looked_at",
        "moved_at",
        "prefill",
    )

    def __init__(self) -> None:
        self.last: Sample | None = None
        self.moved_at = 0.0
        self.looked_at = 0.0
        self.prefill: float | None = None
        self.decode: float | None = None
        self._lost = 0.0  # requests that ended without a first token
        self._hits: float = 0.0  # cached prompt tokens of requests that have not ended
        self._clean = False  # it was idle once, so every request that ends was observed from its beginning
        self._foreign = self._raw_foreign = 0.0
        self._foreign_at = 0.0  # when the raw count was taken with which the next one has to agree
        self._deaf_since = 0.0  # when the first of the looks in a row was made that the engine did not answer; 0 = none

    def unanswered(self, asked_at: float) -> None:
        """A look that was made then, and that the engine itself has to answer, was not answered."""
        if not self._deaf_since:
            self._deaf_since = asked_at

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        self._deaf_since = 0.0
        before, self.last = self.last, sample
        if before is None or sample.begins_anew(before):
            self.moved_at, self._lost, self._clean = sample.at, 0.0, False  # the first sample, or one of a new process
        elif sample.moved_from(before):
            self.moved_at = sample.at
            self._learn(before, sample)
        # Requests without a first token are computing their prompt, wait, or were aborted.
        at_work = sample.running + sample.waiting
        self._lost = max(self._lost, sample.finished - sample.firsts)
        if not at_work:
            self._lost, self._hits, self._clean = sample.finished - sample.firsts, 0.0, True

    def _learn(self, before: Sample, after: Sample) -> None:
        seconds = after.prefill_seconds - before.prefill_seconds
        self._hits += after.hits - before.hits  # hits are counted when a request begins, its prompt tokens when it ends
        ended = after.prefilled - before.prefilled
        tokens, self._hits = ended - self._hits, max(0.0, self._hits - ended)
        if self._clean and tokens >= LEARN_FROM and seconds > 0:
            self.prefill = _nearer(self.prefill, tokens / seconds)
        gaps, seconds = after.gaps - before.gaps, after.gap_seconds - before.gap_seconds
        if gaps >= 1 and seconds > 0:
            self.decode = _nearer(self.decode, gaps / seconds)

    def age(self, now: float) -> float:
        """Seconds since the engine was last looked at; infinite where it never was."""
        return inf if self.last is None else now - self.last.at

    def without_token(self) -> int:
        """Sequences on the engine, ours or not, that got no token yet, by its own counters. An upper bound."""
        last = self.last
        if last is None:
            return 0
        at_work = last.running + last.waiting
        return int(max(0.0, min(at_work, at_work + last.finished - last.firsts - self._lost)))

    def outstanding(self, work: Work) -> int:
        """Prompt tokens that may still have to be computed."""
        without_token = self.without_token()
        last = self.last
        seen = last is not None and last.running + last.waiting >= work.held and self.moved_at > work.newest
        if seen and not without_token:
            return 0  # it made progress since our latest request was sent, and every sequence has a token
        others = max(0, without_token - work.without_token)
        return work.tokens + others * FOREIGN_PROMPT

    def budget(self, work: Work) -> float:
        """Seconds without progress that are tolerated with this work."""
        tokens = self.outstanding(work)
        return max(SILENCE_LEAST, PREFILL_TIMES * tokens / (self.prefill or PREFILL_PRIOR)) if tokens else SILENCE_LEAST

    def silence(self, work: Work, now: float) -> float:
        """Seconds without progress while requests of ours wait for it; 0 without such requests. Requests of others do
        not count: after an abort vLLM's own count of requests may stay too high."""
        if not work.waiting or self.last is None:
            return 0.0
        return max(0.0, now - max(self.moved_at, work.last_received, work.since))

    def stalled(self, work: Work, now: float) -> bool:
        return self.silence(work, now) >= self.budget(work)

    def deaf_for(self, work: Work, now: float) -> float:
        """Seconds for which an engine that answers looks itself has answered none, and has sent nothing."""
        if self.last is None or not self._deaf_since:
            return 0.0
        return max(0.0, now - max(self._deaf_since, work.last_received))

    @property
    def doubted(self) -> bool:
        """Was the last look not answered?"""
        return self._deaf_since > 0

    def is_deaf(self, work: Work, now: float) -> bool:
        return self.deaf_for(work, now) >= DEAF

    def foreign(self, held: int, now: float) -> int:
        """Sequences on the engine that are not ours; `held` is the number of ours. The smaller of two samples counts: a
        request of ours that has just ended or begun must not count as foreign. Samples that follow each other quickly
        only lower the count."""
        last = self.last
        raw = max(0.0, last.running + last.waiting - held) if last is not None else 0.0
        if last is not None and not held and now - self.moved_at > STALE:
            raw = 0.0
        if now - self._foreign_at < LOOKS_AGREE:
            self._raw_foreign = min(raw, self._raw_foreign)
            self._foreign = min(raw, self._foreign)
        else:
            self._foreign, self._raw_foreign, self._foreign_at = min(raw, self._raw_foreign), raw, now
        return int(self._foreign)


def _nearer(known: float | None, seen: float) -> float:
    """A rate after one more observation, as a moving average. Slower observations get the larger weight, because
    waiting too long costs less than a false alarm."""
    seen = min(RATE_MOST, max(RATE_LEAST, seen))
    if known is None:
        return seen
    return known + (seen - known) * (0.5 if seen < known else 0.2)
