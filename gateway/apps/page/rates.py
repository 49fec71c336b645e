"""Rates of an engine from samples of its counters, and percentiles from a histogram's counts, over the last minutes.
Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gateway.domain.progress import Sample

RATE_OVER = 8.0  # seconds at least between the two samples of a rate: over shorter times it jumps
SHARE_OVER = 300.0  # seconds over which shares (of the prefix cache, of drafts) are taken
DRAFTED_LEAST = 200  # draft tokens from which the share of accepted ones means something
STALE = 20.0  # seconds after which the last sample is outdated


@dataclass(frozen=True, slots=True)
class EngineRates:
    """`decode`, `prefill`: tokens per second of all sequences together, without prompt tokens from the prefix cache.
    `kv`: share of the KV cache in use. Over SHARE_OVER seconds: `prefix_hits`, the share of prompt tokens that came
    from the prefix cache, `accepted`, the share of accepted draft tokens by position, and `acceptance`, that of all
    positions together. None or empty = not known, or too little happened."""

    decode: float | None = None
    prefill: float | None = None
    kv: float | None = None
    prefix_hits: float | None = None
    accepted: tuple[float, ...] = ()
    acceptance: float | None = None


class EngineSamples:
    """The samples of one engine, of the last SHARE_OVER seconds. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        """Add a sample; the last one again is ignored."""
        samples = self._samples
        if samples and samples[-1] is sample:
            return
        if samples and (sample.generated < samples[-1].generated or sample.queries < samples[-1].queries):
            samples.clear()  # the engine was restarted
        samples.append(sample)
        while sample.at - samples[0].at > SHARE_OVER:
            samples.popleft()

    def rates(self, at: float) -> EngineRates:
        """The rates at the time `at`."""
        samples = self._samples
        if not samples or at - samples[-1].at > STALE:
            return EngineRates()
        last, first = samples[-1], samples[0]
        before = next((sample for sample in reversed(samples) if last.at - sample.at >= RATE_OVER), first)
        seconds = last.at - before.at
        if seconds <= 0.0:
            return EngineRates(kv=last.kv)
        computed = last.prompted - before.prompted - (last.hits - before.hits)
        return EngineRates(
            decode=max(0.0, last.generated - before.generated) / seconds,
            prefill=max(0.0, computed) / seconds,
            kv=last.kv,
            prefix_hits=_share(last.hits - first.hits, last.queries - first.queries),
            accepted=_accepted(first, last),
            acceptance=_acceptance(first, last),
        )


def _share(part: float, whole: float) -> float | None:
    return min(1.0, max(0.0, part / whole)) if whole > 0.0 else None


def _acceptance(first: Sample, last: Sample) -> float | None:
    drafted = last.drafted_tokens - first.drafted_tokens
    return _share(last.accepted_tokens - first.accepted_tokens, drafted) if drafted >= DRAFTED_LEAST else None


def _accepted(first: Sample, last: Sample) -> tuple[float, ...]:
    drafts = last.drafts - first.drafts
    before = (*first.accepted, *(0.0 for _ in last.accepted[len(first.accepted) :]))
    shares = (_share(now - then, drafts) for now, then in zip(last.accepted, before, strict=False))
    return tuple(share for share in shares if share is not None)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, estimated from buckets; `count`: number of observations."""

    count: int
    p50: float
    p95: float


class HistogramWindow:
    """A histogram over the last `ticks` ticks. `bounds`: upper bounds, ascending."""

    def __init__(self, bounds: Sequence[float], ticks: int) -> None:
        self._bounds = bounds
        self._past: deque[tuple[int, ...]] = deque([(0,) * (len(bounds) + 1)], maxlen=ticks + 1)

    def tick(self, counts: Sequence[int]) -> None:
        """Call once per tick. `counts`: observations per bucket since the start, one more than there are bounds."""
        last = self._past[-1]
        now = tuple(counts)
        self._past.append(last if now == last else now)  # without new observations all ticks share one tuple

    def percentiles(self) -> Percentiles | None:
        """None without an observation in the window."""
        counts = [now - then for now, then in zip(self._past[-1], self._past[0], strict=True)]
        total = sum(counts)
        if total <= 0:
            return None
        return Percentiles(total, quantile(self._bounds, counts, 0.5), quantile(self._bounds, counts, 0.95))


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """The value below which `share` (0..1) of the observations lie, interpolated within a bucket as Prometheus'
    `histogram_quantile` does; at most the last bound. `counts` must have an observation."""
    upto = list(accumulate(counts))
    rank = share * upto[-1]
    index = bisect_left(upto, rank)
    if index >= len(bounds):
        return bounds[-1]
    low = bounds[index - 1] if index else 0.0
    before = upto[index - 1] if index else 0
    return low + (bounds[index] - low) * (rank - before) / counts[index]
