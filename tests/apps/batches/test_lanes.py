"""How quickly a batch goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.batches.lanes import LONGEST, BatchProgress


def test_the_rate_is_that_of_the_last_minute() -> None:
    progress = BatchProgress()
    for second in range(301):
        progress.note(second * 10 if second <= 200 else 2000 + (second - 200), second)
    assert progress.rate(2100, 300.0) == pytest.approx(1.0, rel=0.02)


def test_a_rate_is_not_known_at_once() -> None:
    progress = BatchProgress()
    assert progress.rate(0, 5.0) is None
    progress.note(0, 5.0)
    assert progress.rate(3, 5.5) is None
    assert progress.rate(3, 7.0) == 1.5


def test_nothing_done_is_a_rate_of_0_and_a_time_without_samples_is_none() -> None:
    progress = BatchProgress()
    progress.note(7, 0.0)
    assert progress.rate(7, 10.0) == 0
    assert progress.rate(7, LONGEST + 1) is None


@given(st.lists(st.floats(0, 5), max_size=300))
def test_what_is_kept_is_bounded(steps: list[float]) -> None:
    progress, at = BatchProgress(), 0.0
    for done, step in enumerate(steps):
        at += step
        progress.note(done, at)
    assert len(progress._samples) <= LONGEST + 2
    rate = progress.rate(len(steps), at)
    assert rate is None or rate >= 0
