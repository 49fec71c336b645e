"""When a batch may run."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from gateway.apps.batches.records import Schedule, schedule_of
from gateway.errors import GatewayError

MODES = ("daily", "judges")


def at(clock: str) -> float:
    """Unix seconds of this time of a day, by the clock of this machine."""
    hour, minute = map(int, clock.split(":"))
    return datetime(2026, 3, 4, hour, minute).timestamp()


def test_it_is_read_from_the_metadata() -> None:
    found = schedule_of({"when": '{"mode": "judges", "between": "01:00-06:30"}', "job": "x"}, MODES)
    assert found == Schedule("judges", 60, 390)
    assert found.between == "01:00-06:30"
    assert schedule_of({"when": '{"mode": "judges"}'}, MODES) == Schedule("judges")
    assert schedule_of({"job": "x"}, MODES) is schedule_of(None, MODES) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("01:00-06:00", "it is not JSON"),
        ('["judges"]', "it is not JSON"),
        ('{"modes": "judges"}', "unknown key 'modes'"),
        ('{"mode": "judge"}', "there is no mode 'judge'; modes: daily, judges"),
        ('{"mode": 1}', "there is no mode '1'"),
        ('{"between": "1-6"}', "`between` must be two times of the day, as 01:00-06:00"),
        ('{"between": "01:00-24:00"}', "`between` must be"),
        ('{"between": 1}', "`between` must be"),
    ],
)
def test_a_mistake_in_it_is_named(text: str, said: str) -> None:
    with pytest.raises(GatewayError) as error:
        schedule_of({"when": text}, MODES)
    assert (error.value.code, error.value.param) == ("invalid_request_body", "metadata.when")
    assert said in error.value.message


@pytest.mark.parametrize(
    ("begins", "ends", "clock", "is_open"),
    [
        (60, 360, "00:59", False),
        (60, 360, "01:00", True),
        (60, 360, "05:59", True),
        (60, 360, "06:00", False),
        (1380, 360, "23:30", True),
        (1380, 360, "02:00", True),
        (1380, 360, "12:00", False),
        (0, 0, "12:00", True),
    ],
)
def test_the_window_is_by_the_clock_of_the_machine(begins: int, ends: int, clock: str, is_open: bool) -> None:
    assert Schedule("", begins, ends).is_open(at(clock)) is is_open
    assert Schedule("", 0, 0).is_open(time.time())
