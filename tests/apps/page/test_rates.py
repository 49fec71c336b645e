"""Rates, shares and percentiles from samples of counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.page.rates import DRAFTED_LEAST, STALE, EngineRates, EngineSamples, HistogramWindow, quantile
from gateway.domain.progress import Sample


def test_rates_are_of_the_last_seconds_and_shares_of_the_last_minutes() -> None:
    samples = EngineSamples()
    samples.add(Sample(0.0, queries=100.0, hits=100.0, drafts=10.0, accepted=(10.0, 10.0)))
    samples.add(
        Sample(
            100.0, generated=1000.0, prompted=5000.0, queries=1100.0, hits=900.0, drafts=110.0, accepted=(90.0, 50.0)
        )
    )
    assert samples.rates(100.0) == EngineRates(10.0, (5000.0 - 800.0) / 100.0, 0.0, 0.8, (0.8, 0.4))
    samples.add(
        Sample(
            110.0,
            generated=1500.0,
            prompted=5000.0,
            kv=0.5,
            queries=1100.0,
            hits=900.0,
            drafts=110.0,
            accepted=(90.0, 50.0),
        )
    )
    assert samples.rates(110.0) == EngineRates(50.0, 0.0, 0.5, 0.8, (0.8, 0.4))


def test_the_share_of_accepted_draft_tokens_is_told_where_enough_are_drafted() -> None:
    samples = EngineSamples()
    samples.add(Sample(0.0, drafted_tokens=1000.0, accepted_tokens=900.0))
    samples.add(Sample(10.0, drafted_tokens=1000.0 + DRAFTED_LEAST - 1, accepted_tokens=900.0))
    assert samples.rates(10.0).acceptance is None
    samples.add(Sample(20.0, drafted_tokens=2000.0, accepted_tokens=1000.0))
    assert samples.rates(20.0).acceptance == 0.1


def test_an_engine_that_was_started_anew_begins_anew() -> None:
    samples = EngineSamples()
    samples.add(Sample(0.0, generated=1000.0))
    samples.add(Sample(10.0, generated=5.0, kv=0.1))
    assert samples.rates(10.0) == EngineRates(kv=0.1)
    samples.add(Sample(20.0, generated=105.0))
    assert samples.rates(20.0).decode == 10.0


def test_of_an_engine_that_is_not_looked_at_any_more_nothing_is_said() -> None:
    samples = EngineSamples()
    assert samples.rates(0.0) == EngineRates()
    samples.add(Sample(0.0))
    samples.add(Sample(10.0, generated=100.0))
    assert samples.rates(10.0 + STALE).decode == 10.0
    assert samples.rates(10.1 + STALE) == EngineRates()


@given(st.lists(st.tuples(*[st.floats(0, 1e6)] * 6), min_size=1, max_size=30))
def test_whatever_is_counted_shares_are_shares_and_rates_are_not_negative(rows: list[tuple[float, ...]]) -> None:
    samples = EngineSamples()
    for at, (generated, prompted, hits, queries, drafts, right) in enumerate(rows):
        samples.add(
            Sample(
                at * 7.0,
                generated=generated,
                prompted=prompted,
                hits=hits,
                queries=queries,
                drafts=drafts,
                accepted=(right,),
            )
        )
        now = samples.rates(at * 7.0)
        assert now.decode is None or now.decode >= 0.0
        assert now.prefill is None or now.prefill >= 0.0
        assert now.prefix_hits is None or 0.0 <= now.prefix_hits <= 1.0
        assert all(0.0 <= share <= 1.0 for share in now.accepted)


BOUNDS = (0.1, 0.2, 0.5, 1.0, 2.0)


def spread_over(values: list[float]) -> list[int]:
    counts = [0] * (len(BOUNDS) + 1)
    for value in values:
        counts[sum(bound < value for bound in BOUNDS)] += 1
    return counts


@given(st.lists(st.floats(0.001, 2.0), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_a_percentile_is_in_the_bucket_of_the_real_one(values: list[float], share: float) -> None:
    found = quantile(BOUNDS, spread_over(values), share)
    rank = share * len(values)
    below = [sum(value <= bound for value in values) for bound in BOUNDS]
    bucket = next(index for index, count in enumerate(below) if count >= rank)
    assert (BOUNDS[bucket - 1] if bucket else 0.0) <= found <= BOUNDS[bucket]


def test_what_lies_beyond_the_last_bound_is_told_as_that_bound() -> None:
    assert quantile(BOUNDS, [0, 0, 0, 0, 0, 3], 0.5) == 2.0


def test_only_the_window_counts() -> None:
    recent = HistogramWindow(BOUNDS, 2)
    assert recent.percentiles() is None
    recent.tick(spread_over([0.15] * 9))
    first = recent.percentiles()
    assert first is not None
    assert first.count == 9
    assert first.p50 == pytest.approx(0.15)
    recent.tick(spread_over([0.15] * 9 + [0.9]))
    recent.tick(spread_over([0.15] * 9 + [0.9]))
    second = recent.percentiles()
    assert second is not None
    assert second.count == 1
    assert 0.5 < second.p50 <= 1.0
    recent.tick(spread_over([0.15] * 9 + [0.9]))
    assert recent.percentiles() is None
