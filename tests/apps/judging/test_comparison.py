"""Cohen's kappa against worked examples and its own definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.judging.comparison import agreement, distribution, kappa

SCORES = st.integers(1, 5).map(float)
PAIRS = st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=60)


def pairs(table: list[list[int]]) -> list[tuple[float, float]]:
    """A table of counts: rows are the first judge's categories, columns the second's."""
    return [(float(i), float(j)) for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)]


def test_the_textbook_example() -> None:
    """20 times both yes, 15 times both no, 5 and 10 times apart: 0.7 observed, 0.5 by chance."""
    assert kappa(pairs([[20, 5], [10, 15]])) == pytest.approx(0.4)


def test_with_two_categories_the_weights_change_nothing() -> None:
    table = pairs([[20, 5], [10, 15]])
    assert kappa(table, weighted=True) == pytest.approx(kappa(table))


def test_a_small_difference_counts_less_when_it_is_weighted() -> None:
    near = [(1.0, 1.0), (5.0, 5.0), (3.0, 4.0), (2.0, 1.0)]
    far = [(1.0, 1.0), (5.0, 5.0), (3.0, 5.0), (2.0, 5.0)]
    near_value, far_value = kappa(near, weighted=True), kappa(far, weighted=True)
    assert near_value is not None
    assert far_value is not None
    assert near_value > far_value


@given(PAIRS)
def test_full_agreement_is_one_and_the_order_of_judges_is_nothing(found: list[tuple[float, float]]) -> None:
    for weighted in (False, True):
        assert kappa([(a, a) for a, _ in found], weighted=weighted) in (None, pytest.approx(1.0))
        one, other = kappa(found, weighted=weighted), kappa([(b, a) for a, b in found], weighted=weighted)
        assert one == (None if other is None else pytest.approx(other))
        assert one is None or one <= 1.0 + 1e-9


@given(PAIRS)
def test_the_shares_add_up(found: list[tuple[float, float]]) -> None:
    told = agreement("a", "b", found)
    assert told.lines == len(found)
    assert told.same == pytest.approx(sum(a == b for a, b in found) / len(found))
    scores = {str(n): a for n, (a, _) in enumerate(found)}
    shown = distribution(scores)
    assert sum(count for _, count in shown["counts"]) == shown["lines"] == len(found)


def test_without_a_line_nothing_is_claimed() -> None:
    told = agreement("a", "b", [])
    assert (told.lines, told.same, told.kappa, told.weighted_kappa) == (0, None, None, None)
