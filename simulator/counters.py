"""The counters and histograms of a simulated vLLM engine, with the buckets of 0.32."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Protocol

_TOKENS = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10000.0,
    20000.0,
    50000.0,
    100000.0,
)
_STEP = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_FIRST = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_WHOLE = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
_REASONS = ("stop", "length", "abort", "error", "repetition")


class Timed(Protocol):
    """The figures of one answer. Times in monotonic seconds, sizes in tokens."""

    arrived: float
    scheduled_at: float
    first_at: float
    prompt: int
    made: int
    max_tokens: int


class Histogram:
    """Counts of observations per upper bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Counters:
    """Everything one engine counts. Token counters change only in steps that produce a token."""

    def __init__(self, spec_tokens: int = 0) -> None:
        self.created = time.time()
        self.prompt_tokens = self.generation_tokens = 0
        self.prefix_queries = self.prefix_hits = 0
        self.rejected = 0
        self.finished = dict.fromkeys(_REASONS, 0)
        self.spec_tokens = spec_tokens
        self.drafts = 0
        self.accepted = [0] * spec_tokens  # per position
        self.request_prompt = Histogram(_TOKENS)
        self.request_generation = Histogram(_TOKENS)
        self.iteration = Histogram(_STEP)
        self.params_max_tokens = Histogram(_TOKENS)
        self.first = Histogram(_FIRST)
        self.inter_token = Histogram(_BETWEEN)
        self.e2e = Histogram(_WHOLE)
        self.queue = Histogram(_WHOLE)
        self.inference = Histogram(_WHOLE)
        self.prefill = Histogram(_WHOLE)
        self.decode = Histogram(_WHOLE)

    def step(self, prompt: int, generated: int) -> None:
        self.prompt_tokens += prompt
        self.generation_tokens += generated
        self.iteration.observe(prompt + generated)

    def prefix(self, queried: int, hit: int) -> None:
        self.prefix_queries += queried
        self.prefix_hits += hit

    def drafted(self, accepted: int) -> None:
        if self.spec_tokens:
            self.drafts += 1
            for position in range(accepted):
                self.accepted[position] += 1

    def first_token(self, sequence: Timed, at: float) -> None:
        self.first.observe(at - sequence.arrived)
        self.queue.observe(sequence.scheduled_at - sequence.arrived)

    def ended(self, sequence: Timed, reason: str, at: float) -> None:
        self.finished[reason] = self.finished.get(reason, 0) + 1
        self.request_prompt.observe(sequence.prompt)
        self.request_generation.observe(sequence.made)
        self.params_max_tokens.observe(sequence.max_tokens)
        self.e2e.observe(at - sequence.arrived)
        if sequence.first_at:
            self.inference.observe(at - sequence.scheduled_at)
            self.prefill.observe(sequence.first_at - sequence.scheduled_at)
            self.decode.observe(at - sequence.first_at)
