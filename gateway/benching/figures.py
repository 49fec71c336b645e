"""From runs to figures: medians with their spread, what a load of many yields, what stands between two ways. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from gateway.benching.measured import Run

CLEAR_FROM = 5  # pairs
FIT_LEAST = 0.1  # of their sum: prompts that differ by less are of one length, and their slope is noise

Value = Callable[[Run], float | None]


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of `n` values, the smallest and the largest."""

    n: int
    median: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """Half the way from the smallest to the largest, as a share of the median: the x of "± x %"."""
        return (self.high - self.low) / 2 / abs(self.median) if self.median else 0.0


def spread(values: Iterable[float | None]) -> Spread | None:
    """None where there is no value; those that are None do not count."""
    known = [value for value in values if value is not None]
    return Spread(len(known), median(known), min(known), max(known)) if known else None


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of them lie, between neighbours in proportion. Needs at least one."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


# -- one stream -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Single:
    """One length of prompt, one request at a time. Figures are of the runs that went well; rates are tokens/s."""

    via: str
    asked: int  # tokens of the prompt
    runs: tuple[Run, ...]

    @property
    def good(self) -> list[Run]:
        return [run for run in self.runs if run.ok]

    @property
    def failed(self) -> int:
        return len(self.runs) - len(self.good)

    def of(self, value: Value) -> Spread | None:
        return spread(value(run) for run in self.good)


@dataclass(frozen=True, slots=True)
class Fit:
    """Time to the first text = `overhead` seconds + prompt tokens / `rate`."""

    rate: float
    overhead: float


def fit(points: Sequence[tuple[float, float]]) -> Fit | None:
    """The line through (prompt tokens, seconds) by Theil and Sen: the median of all slopes between two points, so that
    one odd run does not turn it. None where no line says anything."""
    slopes = [
        (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if abs(x2 - x1) >= FIT_LEAST * (x1 + x2)
    ]
    slope = median(slopes) if slopes else 0.0
    return Fit(1 / slope, median(y - slope * x for x, y in points)) if slope > 0 else None


def fit_prefill(runs: Iterable[Run]) -> Fit | None:
    """Over all lengths: without what every request costs, however short its prompt."""
    return fit([(run.prompt, run.ttft) for run in runs if run.ok and run.prompt and run.ttft and run.is_fresh])


# -- many streams -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """So many requests at a time, for a while. When one fails the load was not what it says: no figure is claimed."""

    runs: tuple[Run, ...]

    @property
    def failed(self) -> int:
        return sum(not run.ok for run in self.runs)

    @property
    def ok(self) -> bool:
        return bool(self.runs) and not self.failed

    @property
    def seconds(self) -> float:
        """From the first request's start to the last one's end: the time in which streams run out counts too."""
        return max(run.ended for run in self.runs) - min(run.started for run in self.runs)

    @property
    def output_rate(self) -> float | None:
        """Answer tokens per second, all streams together."""
        if not self.ok or any(run.completion is None for run in self.runs) or self.seconds <= 0:
            return None
        return sum(run.completion or 0 for run in self.runs) / self.seconds

    @property
    def request_rate(self) -> float | None:
        return len(self.runs) / self.seconds if self.ok and self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Level:
    """One concurrency, measured several times."""

    via: str
    concurrency: int
    blocks: tuple[Block, ...]

    @property
    def runs(self) -> list[Run]:
        """Of the blocks that went well."""
        return [run for block in self.blocks if block.ok for run in block.runs]

    @property
    def failed(self) -> int:
        return sum(block.failed for block in self.blocks)

    @property
    def output_rate(self) -> Spread | None:
        return spread(block.output_rate for block in self.blocks)

    @property
    def request_rate(self) -> Spread | None:
        return spread(block.request_rate for block in self.blocks)

    def at(self, value: Value, share: float) -> float | None:
        """A quantile over all requests."""
        values = [known for run in self.runs if (known := value(run)) is not None]
        return quantile(values, share) if values else None


# -- two ways beside each other ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gap:
    """What one way adds to the other, pair by pair of runs made one after the other. `clear`: each of at least five
    pairs shows it, with the same sign; by chance alone that happens once in sixteen times. Else it may be noise."""

    n: int
    median: float
    low: float
    high: float
    clear: bool


def gap(pairs: Iterable[tuple[float | None, float | None]]) -> Gap | None:
    """The first of each pair less the second."""
    found = spread(one - other for one, other in pairs if one is not None and other is not None)
    if found is None:
        return None
    clear = found.n >= CLEAR_FROM and (found.low > 0 or found.high < 0)
    return Gap(found.n, found.median, found.low, found.high, clear)


def ratio(pairs: Iterable[tuple[float | None, float | None]]) -> Spread | None:
    """The first of each pair over the second."""
    return spread(one / other for one, other in pairs if one is not None and other)


def pairs(one: Sequence[Run], other: Sequence[Run], value: Value) -> list[tuple[float | None, float | None]]:
    """Run by run in the order they were made; a pair of which one failed does not count."""
    return [(value(a), value(b)) for a, b in zip(one, other, strict=False) if a.ok and b.ok]
