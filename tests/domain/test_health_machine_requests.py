"""The health machine alone: what requests find."""

from __future__ import annotations

import pytest

from gateway.domain.health_machine import BACKOFF_LEAST, Health
from gateway.domain.health_state import State
from tests.health.machine import NEVER_PROBED, down_by_requests, ready, state


def test_requests_that_fail_make_it_suspect_and_then_down() -> None:
    health = ready()
    states = []
    for _ in range(3):
        health.failed("500", 1.0)
        states.append(health.state)
    assert states == [State.SUSPECT, State.SUSPECT, State.DOWN]


def test_an_answer_between_failures_starts_the_count_again() -> None:
    health = ready()
    for _ in range(5):
        health.failed("500", 1.0)
        health.failed("500", 1.0)
        health.succeeded(2.0)
        assert (health.state, health.fails) == (State.READY, 0)


@pytest.mark.parametrize("failures", [1, 2, 3, 5])
def test_good_checks_alone_do_not_clear_what_requests_found(failures: int) -> None:
    """A hung or broken engine answers /health with 200."""
    health = ready()
    for _ in range(failures):
        health.failed("500", 1.0)
    for second in range(2, 1000):
        health.alive(float(second))
        assert state(health) is not State.READY


def test_after_its_pause_and_good_checks_one_request_at_a_time_is_let_through() -> None:
    health = down_by_requests()
    health.alive(1.5)
    health.alive(1.6)
    assert (health.state, health.usable(1.6)) == (State.DOWN, False), "its pause is not over"
    health.alive(1.0 + BACKOFF_LEAST)
    assert (health.state, health.usable(4.0)) == (State.SUSPECT, True)
    health.trial = True  # what a slot does
    assert not health.usable(4.0)


def test_the_request_on_trial_decides() -> None:
    for outcome, after in ((Health.succeeded, State.READY), (None, State.DOWN)):
        health = down_by_requests()
        health.alive(10.0)
        health.alive(11.0)
        outcome(health, 12.0) if outcome else health.failed("500 again", 12.0)
        assert state(health) is after


def test_each_failed_trial_doubles_the_pause_up_to_half_a_minute() -> None:
    health = down_by_requests()
    pauses = []
    now = 1.0
    for _ in range(8):
        pauses.append(health.retry_at - now)
        now = health.retry_at
        health.alive(now)
        health.alive(now)
        assert health.half_open
        health.failed("500 again", now)
    assert pauses == [2, 4, 8, 16, 30, 30, 30, 30]


def test_an_answer_makes_the_next_pause_short_again() -> None:
    health = down_by_requests()
    health.alive(100.0)
    health.alive(101.0)
    health.succeeded(102.0)
    for _ in range(3):
        health.failed("500", 200.0)
    assert health.retry_at == 200.0 + BACKOFF_LEAST


def test_many_requests_that_die_in_one_crash_are_one_incident() -> None:
    """Eight streams lost at once must not make it wait as after eight failed trials."""
    health = ready()
    for _ in range(8):
        health.failed("connection reset", 1.0)
    assert health.retry_at == 1.0 + BACKOFF_LEAST


def test_a_backend_that_is_never_probed_is_tried_again_after_its_pause() -> None:
    health = Health("cloud", NEVER_PROBED)
    for _ in range(3):
        health.failed("500", 1.0)
    assert state(health) is State.DOWN
    assert [health.usable(t) for t in (1.0, 2.9, 3.0)] == [False, False, True]
    health.trial = True
    assert not health.usable(3.0)
