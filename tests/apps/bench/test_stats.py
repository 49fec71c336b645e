"""The arithmetic of `gateway bench`: what is claimed follows from the runs, and nothing from those that failed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.bench.benchmark import run_order
from gateway.apps.bench.results import Block, Level, SingleRequests, fit_prefill, pairs
from gateway.apps.bench.sample import RequestSample
from gateway.apps.bench.stats import fit, gap, quantile, ratio, spread

SECONDS = st.floats(0.001, 1000.0)
TOKENS = st.integers(2, 10_000)


def sample(
    prompt: int = 1000, tokens: int = 101, ttft: float = 0.5, decoding: float = 1.0, **more: Any
) -> RequestSample:
    """Began at 10 s; a piece per token."""
    made = RequestSample(
        10.0, 10.0 + ttft + decoding, 10.0 + ttft, 10.0 + ttft + decoding, prompt, tokens, pieces=tokens
    )
    return replace(made, **more)


FAILED = sample(error="answered 500: no")


# -- one sample --------------------------------------------------------------------------------------------------------


@given(prompt=st.integers(1, 200_000), tokens=TOKENS, ttft=SECONDS, decoding=SECONDS)
def test_rates_give_back_the_tokens_in_the_time_that_they_took(
    prompt: int, tokens: int, ttft: float, decoding: float
) -> None:
    one = sample(prompt, tokens, ttft, decoding)
    assert one.ttft is not None
    assert one.prefill_rate is not None
    assert one.decode_rate is not None
    assert one.prefill_rate * one.ttft == pytest.approx(prompt)
    assert one.decode_rate * decoding == pytest.approx(tokens - 1, rel=1e-6), "the first token was the prefill's"


def test_tokens_are_the_servers_to_count_and_never_guessed_from_chunks() -> None:
    assert sample(tokens=101, pieces=51).decode_rate == pytest.approx(100), "two tokens in each piece are still two"
    silent = replace(sample(), completion=None, prompt=None)
    assert (silent.decode_rate, silent.prefill_rate) == (None, None)
    assert silent.ttft == pytest.approx(0.5)


def test_text_that_came_in_heaps_tells_no_decode_rate() -> None:
    assert sample(tokens=100, pieces=25).decode_rate is not None
    assert sample(tokens=100, pieces=24).decode_rate is None
    assert sample(tokens=2, pieces=1, decoding=0.0).decode_rate is None


def test_a_prompt_out_of_the_prefix_cache_tells_no_prefill_rate() -> None:
    assert sample(prompt=1000, cached=50).prefill_rate is not None
    assert sample(prompt=1000, cached=51).prefill_rate is None


# -- several ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), SECONDS)))
def test_a_spread_is_of_what_is_known(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    found = spread(values)
    if not known:
        assert found is None
        return
    assert found is not None
    assert (found.n, found.low, found.high) == (len(known), min(known), max(known))
    assert found.low <= found.median <= found.high
    assert sum(value <= found.median for value in known) * 2 >= len(known)


@given(st.lists(SECONDS, min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_lie_within_the_values_and_in_order(values: list[float], a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert min(values) <= quantile(values, low) <= quantile(values, high) * (1 + 1e-12)
    assert quantile(values, high) <= max(values) * (1 + 1e-12)
    assert (quantile(values, 0), quantile(values, 1)) == (min(values), max(values))


def test_failed_runs_are_counted_and_give_no_figure() -> None:
    row = SingleRequests("url", None, 1000, (sample(ttft=1.0), FAILED, sample(ttft=3.0)))
    assert row.failed == 1
    found = row.of(lambda each: each.ttft)
    assert found is not None
    assert found.n == 2
    assert found.median == pytest.approx(2.0)


@given(
    rate=st.floats(50, 50_000),
    overhead=st.floats(0, 5),
    lengths=st.lists(st.integers(100, 200_000), min_size=2, max_size=8),
    data=st.data(),
)
def test_the_fit_finds_the_line_even_when_one_run_is_odd(
    rate: float, overhead: float, lengths: list[int], data: st.DataObject
) -> None:
    points = [(float(tokens), overhead + tokens / rate) for tokens in lengths]
    line = fit(points)
    least, most = min(lengths), max(lengths)
    if most - least < 0.1 * (most + least):
        assert line is None, "prompts of one length have no slope"
        return
    assert line is not None
    assert line.rate == pytest.approx(rate, rel=1e-6)
    assert line.overhead == pytest.approx(overhead, abs=1e-3 + most / rate * 1e-6)
    odd = data.draw(st.integers(0, 2))
    thrice = [points[lengths.index(least)]] * 3 + [points[lengths.index(most)]] * 3
    thrice[odd] = (thrice[odd][0], thrice[odd][1] + 60.0)
    again = fit(thrice)
    assert again is not None
    assert again.rate == pytest.approx(rate, rel=1e-6)


def test_no_line_is_claimed_where_longer_prompts_are_not_slower() -> None:
    assert fit([(100.0, 1.0), (1000.0, 1.0)]) is None
    assert fit([]) is None
    assert fit_prefill([sample(prompt=1000), replace(FAILED, prompt=9000)]) is None


# -- many at a time ---------------------------------------------------------------------------------------------------


@given(streams=st.integers(1, 64), tokens=TOKENS, ttft=SECONDS, decoding=SECONDS)
def test_so_many_like_streams_yield_so_many_times_the_tokens(
    streams: int, tokens: int, ttft: float, decoding: float
) -> None:
    block = Block((sample(100, tokens, ttft, decoding),) * streams)
    assert block.output_rate is not None
    assert block.request_rate is not None
    assert block.output_rate * (ttft + decoding) == pytest.approx(streams * tokens, rel=1e-6)
    assert block.request_rate * (ttft + decoding) == pytest.approx(streams, rel=1e-6)


def test_time_in_which_streams_run_out_counts_too() -> None:
    late = sample(tokens=100, started=10.0, ended=14.0)
    assert Block((sample(tokens=100, ended=12.0), late)).output_rate == pytest.approx(50.0)


def test_a_block_in_which_one_failed_claims_nothing() -> None:
    good, bad = Block((sample(), sample())), Block((sample(), FAILED))
    level = Level("gateway", 2, (good, bad))
    assert (bad.output_rate, bad.request_rate) == (None, None)
    assert level.output_rate is not None
    assert (level.output_rate.n, level.failed, len(level.samples)) == (1, 1, 2)
    assert Level("gateway", 2, (bad,)).at(lambda each: each.ttft, 0.5) is None


# -- two targets -------------------------------------------------------------------------------------------------------


@given(st.lists(SECONDS, min_size=5, max_size=9), st.floats(0.01, 5))
def test_what_is_added_to_each_is_found_whatever_else_drifts(base: list[float], extra: float) -> None:
    through = [sample(ttft=value + extra) for value in base]
    straight = [sample(ttft=value) for value in base]
    found = gap(pairs(through, straight, lambda each: each.ttft))
    assert found is not None
    assert found.clear
    assert math.isclose(found.median, extra, rel_tol=1e-6, abs_tol=1e-9)
    behind = gap(pairs(straight, through, lambda each: each.ttft))
    assert behind is not None
    assert behind.median == pytest.approx(-extra, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("differences", "clear"),
    [([0.004] * 4, False), ([0.004, 0.001, 0.009, 0.002, 0.003], True), ([0.004, -0.001, 0.009, 0.002, 0.003], False)],
)
def test_a_difference_is_only_clear_when_each_of_five_pairs_shows_it(differences: list[float], clear: bool) -> None:
    found = gap([(value, 0.0) for value in differences])
    assert found is not None
    assert found.clear is clear


def test_pairs_of_which_one_failed_do_not_count() -> None:
    assert pairs([sample(), FAILED], [sample(), sample()], lambda each: each.ttft) == [(0.5, 0.5)]
    assert gap([]) is None
    assert ratio([(1.0, None), (1.0, 0.0)]) is None


# -- the order --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True), st.integers(1, 6), st.integers(1, 2))
def test_targets_take_turns_and_neither_is_always_first(items: list[int], repeats: int, targets: int) -> None:
    names = ["gateway", "direct"][:targets]
    order = list(run_order(items, names, repeats))
    assert sorted(order) == sorted((r, item, name) for r in range(repeats) for item in items for name in names)
    firsts = []
    for place in range(0, len(order), targets):
        group = order[place : place + targets]
        assert len({(repeat, item) for repeat, item, _ in group}) == 1, "one right after the other"
        firsts.append(group[0][2])
    if targets == 2:
        assert abs(firsts.count("gateway") - firsts.count("direct")) <= (1 if len(items) % 2 else repeats % 2)
        for item in items:
            begins = [name for (_, its, name) in order if its == item][::2]
            assert abs(begins.count("gateway") - begins.count("direct")) <= 1
