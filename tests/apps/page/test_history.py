"""The last hour in numbers: rates, shares, percentiles, rings."""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any

from gateway.apps.page.history import EVERY, POINTS, TOKENS_OVER, History, Series, SeriesGroup
from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from gateway.domain.progress import Sample
from gateway.engines.vllm import read_counters
from gateway.health.nodes import Machine
from gateway.metrics.registry import Metrics
from tests.sliced import whole

SPECULATING = (Path(__file__).parents[2] / "data" / "engine" / "speculating.txt").read_bytes()


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
