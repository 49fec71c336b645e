"""Statistics of a benchmark: medians with their spread, quantiles, a fitted line, the difference between two targets,
and an order of measuring that is fair to both. Pure; `bench/` uses this module too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TypeVar

CLEAR_FROM = 5  # pairs
MIN_DISTANCE = 0.1  # of the sum of two x: points that lie closer count as one x, and their slope is noise

T = TypeVar("T")
Pairs = Iterable[tuple[float | None, float | None]]


def alternated(targets: Sequence[T], turn: int) -> list[T]:
    """The targets in the order of this turn: forwards and backwards by turns, so that drift of the machine affects all
    of them alike."""
    return list(targets) if turn % 2 == 0 else list(reversed(targets))


# -- one series of values ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of `n` values, the smallest and the largest. Of differences between two targets, over pairs of values
    measured one right after the other, it may be noise unless it is `clear`."""

    n: int
    median: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """Largest less smallest, as a share of the median; 0.0 where the median is 0."""
        return (self.high - self.low) / abs(self.median) if self.median else 0.0

    @property
    def clear(self) -> bool:
        """Are at least five values of the same sign? By chance alone that happens once in sixteen times."""
        return self.n >= CLEAR_FROM and (self.low > 0 or self.high < 0)


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are not None; None where there is no such value."""
    known = [value for value in values if value is not None]
    return Spread(len(known), median(known), min(known), max(known)) if known else None


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie, interpolated between neighbours. Needs at least one."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


# -- a line through points --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrefillLine:
    """y = `overhead` + x / `rate`: of a prefill, seconds by prompt tokens."""

    rate: float
    overhead: float


def fit(points: Sequence[tuple[float, float]]) -> PrefillLine | None:
    """The line through (x, y) by Theil and Sen: the median of all slopes between two points, which one outlier does not
    turn. None where the points are too close together or y does not grow with x."""
    slopes = [
        (y2 - y1) / (x2 - x1)
        for (x1, y1), (x2, y2) in combinations(points, 2)
        if abs(x2 - x1) >= MIN_DISTANCE * (x1 + x2)
    ]
    slope = median(slopes) if slopes else 0.0
    return PrefillLine(1 / slope, median(y - slope * x for x, y in points)) if slope > 0 else None


# -- two targets, pair by pair ----------------------------------------------------------------------------------------


def gap(pairs: Pairs) -> Spread | None:
    """The first value of each pair less the second; None where no pair is complete."""
    return spread(one - other for one, other in pairs if one is not None and other is not None)


def ratio(pairs: Pairs) -> Spread | None:
    """The first value of each pair over the second; None where no pair is complete."""
    return spread(one / other for one, other in pairs if one is not None and other)
