"""The prompts that a backend computes, and its speed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.prefill import RATE_LEAST, RATE_MOST, Prefill


def test_a_prompt_counts_until_its_answer_begins() -> None:
    prefill = Prefill()
    one, two = prefill.begin(4000, 0.0), prefill.begin(2000, 0.0)
    assert prefill.tokens == 6000
    one.computed(1.0)
    one.computed(9.0)
    one.end()
    assert (prefill.tokens, prefill.rate) == (2000, 4000.0)
    two.end()
    assert (prefill.tokens, prefill.rate) == (0, 4000.0), "an attempt that failed shows no speed"


def test_the_prompts_before_it_are_part_of_its_work() -> None:
    prefill = Prefill()
    prefill.begin(3000, 0.0)
    prefill.begin(1000, 0.0).computed(2.0)
    assert prefill.rate == 2000.0


def test_a_short_prompt_shows_no_speed() -> None:
    prefill = Prefill()
    prefill.begin(100, 0.0).computed(5.0)
    assert prefill.rate is None


def test_what_was_computed_lately_is_forgotten() -> None:
    prefill = Prefill()
    prefill.begin(1000, 0.0).end()
    assert prefill.lately(0.0) == 1000
    prefill.begin(500, 0.0).end()
    assert 450 < prefill.lately(20.0) < 600
    assert 0.6 < prefill.prompts(20.0) < 0.8
    assert prefill.lately(600.0) < 1
    assert prefill.prompts(600.0) < 0.01


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(-1.0, 1e6)), max_size=30))
def test_the_speed_is_bounded_and_no_prompt_changes_it_much(seen: list[tuple[int, float]]) -> None:
    prefill = Prefill()
    for tokens, seconds in seen:
        before = prefill.rate
        prefill.begin(tokens, 0.0).computed(seconds)
        assert prefill.tokens == 0
        if prefill.rate is not None:
            assert RATE_LEAST <= prefill.rate <= RATE_MOST
            assert before is None or 0.8 < prefill.rate / before < 1.4
