"""The last hour in numbers: rates, shares, percentiles, rings."""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from gateway.domain.progress import Sample
from gateway.engines.vllm.metrics import read_counters
from gateway.health.nodes import Machine
from gateway.metrics.registry import Metrics
from gateway.observe.history import EVERY, POINTS, TOKENS_OVER, History, Series, SeriesGroup
from gateway.observe.rates import DRAFTED_LEAST, STALE, EngineRates, EngineSamples, HistogramWindow, quantile
from tests.sliced import whole

SPECULATING = (Path(__file__).parents[1] / "data" / "engine" / "speculating.txt").read_bytes()


def state(name: str, url: str = "http://10.0.0.1:1") -> BackendState:
    backend = Backend(name, url=url, slots=4)
    return BackendState(backend, None, Health(name, backend.health, state=State.READY))


def history(states: Mapping[str, BackendState], metrics: Metrics, **machines: Machine) -> History:
    return History(lambda: states, lambda: machines, dict, metrics)


# -- engines ----------------------------------------------------------------------------------------------------------


def test_a_real_engines_prefix_cache_and_drafts_are_read() -> None:
    sample = whole(read_counters(SPECULATING, 1.0))
    assert sample is not None
    assert (sample.queries, sample.hits) == (17.0, 0.0)
    assert (sample.drafts, sample.accepted) == (10.0, (5.0, 4.0, 3.0))


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


def test_backends_that_draft_are_told_with_their_acceptance_until_they_are_looked_at_no_more() -> None:
    a, b = state("a"), state("b")
    kept = history({"a": a, "b": b}, Metrics())
    b.progress.add(Sample(0.0))
    for at, accepted in ((0.0, 0.0), (10.0, 300.0)):
        a.progress.add(Sample(at, generated=at, drafted_tokens=at * 100, accepted_tokens=accepted))
        kept.sample(at, at)
    assert kept.acceptance() == {"a": 0.3}
    kept.sample(100.0, 100.0)
    assert kept.acceptance() == {}


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


# -- time to first token ----------------------------------------------------------------------------------------------

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


# -- rings ------------------------------------------------------------------------------------------------------------


def test_an_hour_is_kept_and_no_more() -> None:
    series = Series()
    for number in range(5 * POINTS):
        series.append(float(number))
        assert len(series._values) < 2 * POINTS
    assert series.last(POINTS) == [float(n) for n in range(4 * POINTS, 5 * POINTS)]


def test_what_is_not_known_is_a_gap_and_what_never_was_is_left_out() -> None:
    lines = SeriesGroup(("a", "b"))
    for value in (1.0, None, 2.0):
        lines.append({"a": value})
    told = lines.known()
    assert list(told) == ["a"]
    assert [None if isnan(v) else v for v in told["a"]] == [1.0, None, 2.0]


# -- the fleet --------------------------------------------------------------------------------------------------------


def sampled(of: History, times: int = 1, start: float = 1000.0) -> dict[str, Any]:
    for number in range(times):
        of.sample(start + number * EVERY, number * EVERY)
    return of.latest


def test_a_sample_has_the_numbers_of_all_backends_aliases_and_machines() -> None:
    metrics = Metrics()
    states = {"a": state("a"), "b": state("b")}
    states["a"].inflight = 2
    states["a"].progress.add(Sample(0.0, kv=0.25))
    metrics.first_token.child("w", "a").observe(0.2)
    metrics.first_token.child("v", "a").observe(0.2)
    metrics.requests.child("w", "a", "chat", "200").value = 10
    metrics.requests.child("w", "", "chat", "backend_warming").value = 5
    told = sampled(history(states, metrics, n=Machine(1.0, True, 5e9, 1e10, 50.0)))
    a, b = told["backends"]["a"], told["backends"]["b"]
    assert (a["from"], a["inflight"], a["kv"]) == ("engine", 2, 0.25)
    assert 0.1 < a["ttft_p50"] <= 0.25
    assert (b["from"], b["decode"], b["ttft_p95"]) == ("gateway", 0.0, None)
    assert set(told["aliases"]) == {"w", "v"}
    assert told["nodes"] == {"n": {"memory_used": 5e9, "temperature": 50.0, "power": None, "gpu": None}}
    assert told["gateway"] == {"requests": 15 / EVERY, "errors": 5 / EVERY}


def test_without_an_engines_metrics_our_own_counts_make_the_rates() -> None:
    metrics = Metrics()
    of = history({"a": state("a")}, metrics)
    sampled(of)
    metrics.tokens.child("open", "w", "a", "completion").value = 600
    metrics.tokens.child("open", "w", "a", "prompt").value = 1000
    metrics.tokens.child("open", "w", "a", "cached").value = 400
    told = sampled(of, TOKENS_OVER)["backends"]["a"]
    seconds = TOKENS_OVER * EVERY
    assert (told["decode"], told["prefill"]) == (round(600 / seconds, 1), round(600 / seconds, 1))
    assert sampled(of, TOKENS_OVER + 1)["backends"]["a"]["decode"] == 0.0


def test_a_backend_that_is_another_one_begins_anew_and_one_that_went_is_forgotten() -> None:
    states = {"a": state("a"), "b": state("b")}
    of = history(states, Metrics())
    sampled(of, 3)
    states["a"] = state("a", "http://10.0.0.2:1")
    del states["b"]
    sampled(of)
    told = dict(value for part, value in of.parts() if part == "backends")
    assert set(told) == {"a"}
    assert len(told["a"]["inflight"]) == 1


def test_an_hour_of_thirty_backends_takes_little_room() -> None:
    states = {f"b{n}": state(f"b{n}") for n in range(30)}
    of = history(states, Metrics())
    rng = random.Random(1)
    for number in range(POINTS + 10):
        for backend in states.values():
            backend.inflight = rng.randrange(4)
        of.sample(1000.0 + number * EVERY, number * EVERY)
    held = sum(len(s._values) for kept in of._backends.values() for s in kept.lines._series.values())
    assert held * 8 < 3_000_000
    assert all(len(values) == POINTS for part, values in of.parts() if part == "at")


def test_what_is_sampled_while_the_hour_is_told_is_in_none_of_its_columns() -> None:
    states = {"a": state("a"), "b": state("b")}
    of = history(states, Metrics(), n=Machine(1.0, True, 5e9, 1e10, 50.0))
    for number, backend in enumerate(states.values()):
        backend.inflight = number + 1
    sampled(of, 3)
    told = []
    for part, value in of.parts():
        told.append((part, value))
        for backend in states.values():
            backend.inflight = 7
        if part == "gateway":
            states["c"] = state("c")
        sampled(of)
    found = {value[0]: value[1] for part, value in told if part in ("backends", "nodes")}
    assert len(told[0][1]) == 3
    assert found["a"]["inflight"] == [1.0] * 3
    assert found["b"]["inflight"] == [2.0] * 3
    assert not found["c"]
    assert found["n"]["memory_used"] == [5e9] * 3
