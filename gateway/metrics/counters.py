"""Counters and histograms for the request path: plain attributes, converted to Prometheus' form at a scrape.

`prometheus_client`'s own children take a lock and some checks per observation, a tenth of the gateway's
cost at eight observations per request (docs/performance.md). Here one thread writes, so that no lock is needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class MetricValue:
    """A counter, or a gauge: change `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Histogram:
    """A histogram. `bounds`: upper bounds, ascending; `counts`: observations per bucket, the last beyond all bounds."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, cumulative count), as Prometheus writes them."""
        result = []
        seen = 0
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self.counts, strict=True):
            seen += count
            result.append((bound, float(seen)))
        return result


class MetricFamily(Collector):
    """One metric with labels; `child` returns the `MetricValue` or `Histogram` of a set of label values."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str], bounds: Sequence[float] | None = None) -> None:
        self.name = name
        self._meaning = meaning
        self._labels = labels
        self._bounds = bounds
        self._children: dict[tuple[str, ...], Any] = {}

    def child(self, *values: str) -> Any:
        found = self._children.get(values)
        if found is None:
            found = self._children[values] = MetricValue() if self._bounds is None else Histogram(self._bounds)
        return found

    @property
    def bounds(self) -> Sequence[float]:
        """The upper bounds of a histogram; empty for a counter."""
        return self._bounds or ()

    def items(self) -> Iterable[tuple[tuple[str, ...], Any]]:
        """(label values, `MetricValue` or `Histogram`) of all children."""
        return self._children.items()

    def inc(self, *values: str) -> None:
        """Add one, where counting is too rare to keep the child."""
        self.child(*values).value += 1

    def keep(self, label: str, values: Container[str]) -> None:
        """Drop the children with another value of `label`, where the family has that label."""
        if label in self._labels:
            at = self._labels.index(label)
            self._children = {key: child for key, child in self._children.items() if key[at] in values}

    def describe(self) -> Iterable[CounterMetricFamily | HistogramMetricFamily]:
        return (self._family(),)

    def _family(self) -> CounterMetricFamily | HistogramMetricFamily:
        kind = CounterMetricFamily if self._bounds is None else HistogramMetricFamily
        return kind(self.name, self._meaning, labels=self._labels)

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        family = self._family()
        for values, child in self._children.items():
            if isinstance(family, HistogramMetricFamily):
                family.add_metric(values, child.buckets(), child.total)
            else:
                family.add_metric(values, child.value)
        yield family
