"""The samples of a benchmark, grouped."""

from __future__ import annotations

import pytest

from gateway.apps.bench.results import DIRECT, GATEWAY, Block, Results
from tests.apps.bench.test_report import results, sample


def test_failures_are_summed_up_by_what_they_say() -> None:
    found = results(0.5)
    found.single[GATEWAY, 1000].append(sample(error="answered 500: no"))
    found.sweep[DIRECT, 2].append(Block((sample(error="answered 500: no"), sample(error="answered 500: no"))))
    assert found.errors() == {(DIRECT, "answered 500: no"): 2, (GATEWAY, "answered 500: no"): 1}
    assert not found.ok


def test_it_is_not_fine_when_it_was_stopped_or_empty() -> None:
    assert not Results(128).ok
    found = results(0.5)
    assert found.ok
    found.stopped = True
    assert not found.ok


def test_only_runs_of_one_backend_are_compared() -> None:
    found = Results(128, expected="a")
    for backend, ttft in (("a", 0.6), ("b", 9.0), ("a", 0.6)):
        found.single[GATEWAY, 1000].append(sample(ttft, backend))
        found.single[DIRECT, 1000].append(sample(0.5, None))
    ((_, first, _),) = found.added()
    assert first is not None
    assert first.n == 2
    assert first.median == pytest.approx(0.1)
    assert [(row.via, row.backend, len(row.samples)) for row in found.singles()] == [
        (GATEWAY, "a", 2),
        (GATEWAY, "b", 1),
        (DIRECT, "a", 3),
    ]
