"""What is said beside the figures of `gateway bench`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.apps.bench.report import added, rate, remarks, seconds, share, spread
from gateway.apps.bench.results import GATEWAY, Results
from gateway.apps.bench.sample import RequestSample
from gateway.apps.bench.stats import Spread


def sample(ttft: float = 0.5, backend: str | None = "a", **more: Any) -> RequestSample:
    whole = RequestSample(0.0, ttft + 1.0, ttft, ttft + 1.0, prompt=1000, completion=128, pieces=128, backend=backend)
    return replace(whole, **more)


def results(*ttfts: float, **more: Any) -> Results:
    found = Results(128)
    for ttft in ttfts:
        found.single[GATEWAY, 1000].append(sample(ttft, **more))
    return found


def said(found: Results, words: str) -> bool:
    return any(words in remark for remark in remarks(found))


def test_nothing_is_said_of_a_quiet_run() -> None:
    assert remarks(results(0.5, 0.51, 0.52)) == []


def test_a_wide_spread_is_said() -> None:
    assert said(results(0.5, 0.9, 1.2), "vary by more than ±25%")
    assert not said(results(0.5, 1.2), "vary"), "of two values nobody can tell"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"completion": 40}, "1 of 1 answers have fewer than 128 tokens (the shortest 40)"),
        ({"completion": 40}, "say little about decode"),
        ({"completion": 10_000, "pieces": 10_000}, "more tokens than the 128 asked for"),
        ({"pieces": 3}, "came in heaps"),
        ({"cached": 900}, "1 prompts came partly out of the prefix cache"),
        ({"reasoning": 5}, "1 of 1 answers hold thoughts"),
        ({"prompt": 700}, "of a prompt of about 1,000 tokens the server counted 700"),
        ({"completion": None}, "the server reports no usage"),
    ],
)
def test_what_the_runs_show_is_said(more: dict[str, Any], words: str) -> None:
    assert said(results(0.5, **more), words)


def test_times_and_rates_have_about_three_digits() -> None:
    assert [seconds(v) for v in (0.00412, 0.0999, 0.967, 0.9996, 2.354, 10.04, 133.2, -0.0069)] == [
        *("4.1 ms", "99.9 ms", "967 ms", "1.00 s", "2.35 s", "10.0 s", "133 s", "-6.9 ms")
    ]
    assert [rate(v) for v in (102.84, 6225.4)] == ["102.8", "6,225"]
    assert spread(Spread(3, 100.0, 90.0, 110.0), rate) == "100.0 ±10.0%"
    assert (spread(Spread(1, 100.0, 100.0, 100.0), rate), spread(None, rate)) == ("100.0", "-")


def test_what_may_be_noise_is_called_so() -> None:
    assert added(Spread(1, 0.002, 0.002, 0.002)) == "+2.0 ms (one pair: may be noise)"
    assert added(Spread(3, 0.002, 0.001, 0.003)) == "+2.0 ms (1.0 ms to 3.0 ms in 3 pairs: too few to tell)"
    assert added(Spread(5, 0.002, -0.001, 0.003)) == "+2.0 ms (-1.0 ms to 3.0 ms in 5 pairs: within the noise)"
    assert added(Spread(5, 0.002, 0.001, 0.003)) == "+2.0 ms (1.0 ms to 3.0 ms in 5 pairs)"
    assert share(Spread(5, 0.99, 0.98, 1.0)) == "99.0% (98.0%-100.0%: within the noise)"
    assert share(Spread(5, 0.98, 0.97, 0.99)) == "98.0% (97.0%-99.0%)"
    assert share(Spread(4, 0.98, 0.97, 0.99)) == "98.0% (97.0%-99.0%: too few to tell)"
