"""What an engine does now, out of two or more looks at its counters. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gateway.domain.progress import Sample

RATE_OVER = 8.0  # seconds at least between the two looks that make a rate: shorter ones jump
SHARE_OVER = 300.0  # seconds over which shares (of the prefix cache, of drafts) are taken
STALE = 20.0  # seconds after which the last look says nothing of now


@dataclass(frozen=True, slots=True)
class EngineNow:
    """`decode` and `prefill`: tokens per second of all its sequences together, prompt tokens found in the prefix cache
    left out. `kv`: share of the KV cache in use. `prefix_hits`: share of the prompt tokens that were found in the
    prefix cache; `accepted`: at each position, the share of drafts that were right there; both over the last minutes.
    None, or empty = not known, or nothing happened."""

    decode: float | None = None
    prefill: float | None = None
    kv: float | None = None
    prefix_hits: float | None = None
    accepted: tuple[float, ...] = ()


class Looks:
    """The looks at one engine in the last minutes. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._looks: deque[Sample] = deque()

    def take(self, sample: Sample) -> None:
        """A further look; the same one again is none."""
        looks = self._looks
        if looks and looks[-1] is sample:
            return
        if looks and (sample.generated < looks[-1].generated or sample.queries < looks[-1].queries):
            looks.clear()  # another process
        looks.append(sample)
        while sample.at - looks[0].at > SHARE_OVER:
            looks.popleft()

    def now(self, at: float) -> EngineNow:
        looks = self._looks
        if not looks or at - looks[-1].at > STALE:
            return EngineNow()
        last, first = looks[-1], looks[0]
        before = next((look for look in reversed(looks) if last.at - look.at >= RATE_OVER), first)
        seconds = last.at - before.at
        if seconds <= 0.0:
            return EngineNow(kv=last.kv)
        computed = last.prompted - before.prompted - (last.hits - before.hits)
        return EngineNow(
            decode=max(0.0, last.generated - before.generated) / seconds,
            prefill=max(0.0, computed) / seconds,
            kv=last.kv,
            prefix_hits=_share(last.hits - first.hits, last.queries - first.queries),
            accepted=_accepted(first, last),
        )


def _share(part: float, whole: float) -> float | None:
    return min(1.0, max(0.0, part / whole)) if whole > 0.0 else None


def _accepted(first: Sample, last: Sample) -> tuple[float, ...]:
    drafts = last.drafts - first.drafts
    before = (*first.accepted, *(0.0 for _ in last.accepted[len(first.accepted) :]))
    shares = (_share(now - then, drafts) for now, then in zip(last.accepted, before, strict=False))
    return tuple(share for share in shares if share is not None)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, as far as the buckets tell; `count` observations."""

    count: int
    p50: float
    p95: float


class Recent:
    """A histogram's counts over a window of so many ticks; call `tick` with those since the start, once per tick."""

    def __init__(self, bounds: Sequence[float], ticks: int) -> None:
        self._bounds = bounds
        self._past: deque[tuple[int, ...]] = deque([(0,) * (len(bounds) + 1)], maxlen=ticks + 1)

    def tick(self, counts: Sequence[int]) -> None:
        last = self._past[-1]
        now = tuple(counts)
        self._past.append(last if now == last else now)  # a quiet hour holds one tuple, not hundreds

    def percentiles(self) -> Percentiles | None:
        """None = nothing was observed in the window."""
        counts = [now - then for now, then in zip(self._past[-1], self._past[0], strict=True)]
        total = sum(counts)
        if total <= 0:
            return None
        return Percentiles(total, quantile(self._bounds, counts, 0.5), quantile(self._bounds, counts, 0.95))


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """The value below which `share` of the observations lie, taken as even within a bucket, as Prometheus'
    `histogram_quantile` does; the last finite bound for what lies beyond it. There must be an observation."""
    upto = list(accumulate(counts))
    rank = share * upto[-1]
    index = bisect_left(upto, rank)
    if index >= len(bounds):
        return bounds[-1]
    low = bounds[index - 1] if index else 0.0
    before = upto[index - 1] if index else 0
    return low + (bounds[index] - low) * (rank - before) / counts[index]
