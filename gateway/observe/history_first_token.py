"""Percentiles of the last minutes, out of a histogram's counts now and then. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


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
