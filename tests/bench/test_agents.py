"""`make bench-agents`: what the published rows are made of, made small."""

from __future__ import annotations

import asyncio
import time

import pytest

from bench import virtual_time
from bench.agents.measure import Figures, one_run
from bench.agents.scenarios import SCENARIOS


def test_time_passes_only_while_nothing_is_done() -> None:
    async def sleeps() -> float:
        began = asyncio.get_running_loop().time()
        assert abs(time.monotonic() - began) < 1e-6
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - began

    real = time.perf_counter()
    assert virtual_time.run(sleeps()) == pytest.approx(3600)
    assert time.perf_counter() - real < 60
    assert time.monotonic() < 1e9


def measured(scenario: str, row: str, agents: int = 16, turns: int = 5) -> Figures:
    return virtual_time.run(one_run(SCENARIOS[scenario], row, 1, agents, turns))


def test_equal_replicas_keep_their_agents() -> None:
    ours, hashed, turns = (measured("equal-2", row) for row in ("ours", "hash", "turns"))
    assert ours.broken == ours.moved == 0
    assert len(ours.first) == 16 * 5
    assert ours.computed <= 1.02 * hashed.computed < 0.9 * turns.computed
    assert ours.quantile(0.95) <= hashed.quantile(0.95) < turns.quantile(0.95)


@pytest.mark.parametrize("scenario", ["skewed-2", "no-ids-2"])
def test_agents_that_a_hash_piles_up_are_spread(scenario: str) -> None:
    ours, hashed = measured(scenario, "ours"), measured(scenario, "hash")
    assert ours.computed <= 1.1 * hashed.computed
    assert ours.quantile(0.95) < 0.8 * hashed.quantile(0.95)
