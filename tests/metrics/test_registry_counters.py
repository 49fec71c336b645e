"""Counters and histograms of the request path, in Prometheus' form."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.metrics.registry import Histogram, MetricFamily


@pytest.mark.parametrize(
    ("value", "buckets"),
    [(0.0, [1, 1, 1]), (1.0, [1, 1, 1]), (1.5, [0, 1, 1]), (2.0, [0, 1, 1]), (9.0, [0, 0, 1])],
)
def test_a_histogram_counts_a_value_in_each_bucket_at_or_above_it(value: float, buckets: list[int]) -> None:
    histogram = Histogram((1, 2))
    histogram.observe(value)
    assert histogram.buckets() == list(zip(("1.0", "2.0", "+Inf"), buckets, strict=True))
    assert histogram.total == value


def test_a_family_is_scraped_as_prometheus_own_metrics_are() -> None:
    counter = MetricFamily("answers", "Answers.", ("backend",))
    seconds = MetricFamily("seconds", "Seconds.", ("backend",), (0.5,))
    counter.inc("a")
    counter.inc("a")
    seconds.child("a").observe(0.25)
    registry = CollectorRegistry()
    registry.register(counter)
    registry.register(seconds)
    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'answers_total{backend="a"} 2.0',
        'seconds_bucket{backend="a",le="0.5"} 1.0',
        'seconds_bucket{backend="a",le="+Inf"} 1.0',
        'seconds_count{backend="a"} 1.0',
        'seconds_sum{backend="a"} 0.25',
    ]


def test_children_of_a_name_that_is_gone_are_dropped() -> None:
    family = MetricFamily("answers", "Answers.", ("backend", "code"))
    for backend in ("a", "b"):
        family.inc(backend, "200")
    family.keep("backend", {"b"})
    family.keep("alias", set())
    assert [labels for labels, _ in family.items()] == [("b", "200")]
