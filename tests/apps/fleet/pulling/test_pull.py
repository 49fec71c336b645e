"""The progress of a step in words."""

from __future__ import annotations

from gateway.apps.fleet.pulling.pull import Meter


def test_progress_has_the_speed_and_the_time_that_is_left() -> None:
    meter = Meter("spark1: download m", began=100.0, first=0)
    line = meter.line(25 * 2**30, 100 * 2**30, 200.0)
    assert line.strip() == "spark1: download m:  25% of 100.0 GiB, 268 MB/s, 5 min 00 s left"
    assert meter.line(0, 100 * 2**30, 200.0).strip() == "spark1: download m:   0% of 100.0 GiB"
    assert meter.line(5, 0, 130.0).strip() == "spark1: download m: 30 s"
    assert "1 h 23 min left" in meter.line(2**30, 51 * 2**30, 200.0)
