from __future__ import annotations

import re
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.units import Budget, format_duration, format_size, parse_budget, parse_duration, parse_size


@given(st.integers(min_value=0, max_value=10**9).map(lambda ms: ms / 1000))
def test_durations_survive_a_round_trip(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-9)


@given(st.integers(min_value=1, max_value=2**20), st.sampled_from(["B", "KiB", "MiB", "GiB"]))
def test_sizes_survive_a_round_trip(count: int, unit: str) -> None:
    size = parse_size(f"{count}{unit}")
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.005)


@given(st.decimals(min_value=0, max_value=10**6, places=2), st.sampled_from(("day", "week", "month")))
def test_budgets_are_read_as_written(usd: object, per: Literal["day", "week", "month"]) -> None:
    assert parse_budget(f"{usd} USD/{per}") == Budget(float(str(usd)), per)


@given(st.text(max_size=12))
def test_any_other_text_is_a_value_error(text: str) -> None:
    for parse in (parse_duration, parse_size, parse_budget):
        try:
            parse(text)
        except ValueError:
            continue
        assert re.match(r"[0-9].*[a-zA-Z]\Z", text), text


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("5s", 5), ("1.5m", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["5", "5 s", "s", "-5s", "5sec", "1h30m", "٥s", "", "inf", "1e3s"])
def test_not_durations(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 2**26), ("119.67GiB", round(119.67 * 2**30)), ("10 MB", 10**7), ("7B", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "none"), (0.0, "0s"), (900.0, "15m"), (0.25, "250ms"), (1.5, "1.5s")]
)
def test_durations_are_printed_short(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text
