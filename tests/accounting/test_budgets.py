"""Budgets: UTC days, weeks and months; what runs counts too, and nothing of it stays behind."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accounting.budgets import EPOCH, Account, Budgets, first_day, next_day
from gateway.config.snapshot import Budget

PERIODS: tuple[Literal["day", "week", "month"], ...] = ("day", "week", "month")
DAYS = st.integers(0, 60_000)
CENTS = st.integers(1, 500)
CLOUD, HERMES = Account("backend", "cloud"), Account("client", "hermes")


def day(text: str) -> int:
    return (date.fromisoformat(text) - EPOCH).days


@pytest.mark.parametrize(
    ("per", "today", "first", "following"),
    [
        ("day", "2026-02-28", "2026-02-28", "2026-03-01"),
        ("week", "2026-03-01", "2026-02-23", "2026-03-02"),  # a Sunday
        ("week", "2026-03-02", "2026-03-02", "2026-03-09"),  # a Monday
        ("month", "2026-02-28", "2026-02-01", "2026-03-01"),
        ("month", "2026-12-31", "2026-12-01", "2027-01-01"),
        ("month", "2028-02-29", "2028-02-01", "2028-03-01"),
    ],
)
def test_periods_are_utc_days_weeks_from_monday_and_months(
    per: Literal["day", "week", "month"], today: str, first: str, following: str
) -> None:
    assert first_day(per, day(today)) == day(first)
    assert next_day(per, day(today)) == day(following)


@given(DAYS, st.sampled_from(PERIODS))
def test_periods_follow_each_other_without_a_gap(today: int, per: Literal["day", "week", "month"]) -> None:
    first, following = first_day(per, today), next_day(per, today)
    assert first <= today < following
    assert first_day(per, following) == following
    assert first_day(per, following - 1) == first
    begins = EPOCH + timedelta(days=first)
    assert per == "day" or (begins.weekday() == 0 if per == "week" else begins.day == 1)


@given(st.lists(st.tuples(st.integers(0, 200), CENTS), max_size=80), st.sampled_from(PERIODS))
def test_spent_is_the_sum_of_the_running_period(
    spendings: list[tuple[int, int]], per: Literal["day", "week", "month"]
) -> None:
    """However long ago the first were."""
    budgets, start = Budgets(), day("2026-01-15")
    spendings.sort()
    for after, cents in spendings:
        budgets.add("cloud", "hermes", cents / 100, start + after)
    today = start + (spendings[-1][0] if spendings else 0)
    expected = sum(c for after, c in spendings if start + after >= first_day(per, today)) / 100
    for account in (CLOUD, HERMES):
        assert budgets.spent(account, Budget(1.0, per), today) == pytest.approx(expected)


@given(st.lists(CENTS, max_size=50), st.randoms())
def test_reservations_that_end_leave_nothing_behind(cents: list[int], order: Random) -> None:
    budgets = Budgets()
    for amount in cents:
        budgets.reserve(CLOUD, amount / 100)
    assert budgets.reserved(CLOUD) == pytest.approx(sum(cents) / 100)
    order.shuffle(cents)
    for amount in cents:
        budgets.release(CLOUD, amount / 100)
    assert budgets.reserved(CLOUD) == 0.0


def test_at_the_budget_it_says_what_was_spent_and_until_when() -> None:
    budgets, today, budget = Budgets(), day("2026-03-01"), Budget(5.0, "day")
    budgets.add("cloud", "hermes", 4.99, today)
    assert budgets.exhausted(CLOUD, budget, today) is None
    budgets.add("cloud", "other", 0.02, today)
    assert budgets.exhausted(CLOUD, budget, today) == "5.01 USD of 5 USD/day until 2026-03-02 00:00 UTC"
    assert budgets.exhausted(HERMES, budget, today) is None, "the other's money is not its own"
    assert budgets.exhausted(CLOUD, budget, today + 1) is None


def test_a_request_under_way_counts_against_the_budget_until_it_is_given_back() -> None:
    budgets, today, budget = Budgets(), day("2026-03-01"), Budget(5.0, "month")
    budgets.add("cloud", "hermes", 4.0, today)
    budgets.reserve(CLOUD, 1.0)
    said = "4.00 USD and 1.00 under way of 5 USD/month until 2026-04-01 00:00 UTC"
    assert budgets.exhausted(CLOUD, budget, today) == said
    budgets.release(CLOUD, 1.0)
    assert budgets.exhausted(CLOUD, budget, today) is None


def test_a_budget_of_nothing_allows_nothing() -> None:
    assert Budgets().exhausted(CLOUD, Budget(0.0, "week"), day("2026-03-01")) is not None


def test_a_year_of_spending_keeps_the_running_month_and_not_the_year() -> None:
    budgets, start = Budgets(), day("2026-01-01")
    for today in range(start, start + 365):
        budgets.add("cloud", "hermes", 0.01, today)
        expected = 0.01 * (today - first_day("month", today) + 1)
        assert budgets.spent(CLOUD, Budget(1.0, "month"), today) == pytest.approx(expected)
    assert len(budgets._spent[CLOUD]) < 70


def test_spending_before_the_start_counts_against_the_budget() -> None:
    budgets, today = Budgets(), day("2026-03-04")
    budgets.add_history(
        [(today - 2, "cloud", "hermes", 1.0), (today, "cloud", "other", 2.0), (today - 3, "cloud", "x", 9.0)]
    )
    assert budgets.spent(CLOUD, Budget(1.0, "week"), today) == 3.0
    assert budgets.spent(HERMES, Budget(1.0, "week"), today) == 1.0
