"""A backend that comes and goes is not used until it has been quiet. The health machine alone, time passed in."""

from __future__ import annotations

import pytest

from gateway.config.snapshot import HealthSettings
from gateway.domain.health_machine import Health
from gateway.domain.health_state import QUIET_LEAST, STEADY, State

EVERY = 5.0


def machine() -> Health:
    health = Health("a", HealthSettings(every=EVERY, fail_after=3, recover_after=2))
    health.alive(0.0)
    return health


def look(health: Health, now: float, up: bool) -> None:
    if up:
        health.alive(now)
    else:
        health.dead("connection refused", now, refused=True)


@pytest.mark.parametrize("half", [10.0, 20.0, 40.0])
def test_a_backend_that_alternates_is_out_soon_and_stays_out(half: float) -> None:
    health = machine()
    used: list[float] = []
    now = 0.0
    while now < 3600.0:
        now += EVERY
        look(health, now, up=now % (2 * half) < half)
        if health.usable(now) and health.state is State.READY:
            used.append(now)
    assert used, "it was used in the beginning"
    assert used[-1] < 600.0, "and never again"


def test_when_it_is_quiet_it_is_used_again() -> None:
    health = machine()
    now = 0.0
    while now < 600.0:
        now += EVERY
        look(health, now, up=now % 20.0 < 10.0)
    quiet_from = now
    while health.state is not State.READY:
        now += EVERY
        look(health, now, up=True)
        assert now < quiet_from + 120.0
    assert now - quiet_from >= QUIET_LEAST


def test_each_fall_doubles_the_time_that_it_has_to_be_quiet() -> None:
    health = machine()
    holds = []
    now = 0.0
    for _ in range(9):
        for _ in range(3):
            now += EVERY
            look(health, now, up=False)
        holds.append(health.hold)
        while health.state is not State.READY:
            now += EVERY
            look(health, now, up=True)
    assert holds == [0, 15, 30, 60, 120, 240, 480, 600, 600]


def test_a_fall_after_a_long_good_time_is_the_first_again() -> None:
    health = machine()
    now = 0.0
    for _ in range(5):
        now += STEADY
        for _ in range(3):
            now += EVERY
            look(health, now, up=False)
        assert (health.state, health.hold) == (State.DOWN, 0.0)
        for _ in range(2):
            now += EVERY
            look(health, now, up=True)
        assert health.state is State.READY


def test_requests_that_fail_now_and_then_do_not_make_it_one_that_flaps() -> None:
    health = machine()
    for second in range(1, 1000):
        health.failed("500", float(second))
        health.succeeded(float(second) + 0.5)
        health.alive(float(second) + 0.6)
    assert (health.state, health.hold) == (State.READY, 0.0)


def test_checks_that_only_take_long_do_not_either() -> None:
    """Busy is not coming and going."""
    health = machine()
    now = 0.0
    for _ in range(50):
        health.dead("no answer within 3 s", now + 1.0)
        health.alive(now + 2.0)
        health.alive(now + 3.0)
        now += 10.0
        assert (health.state, health.hold) == (State.READY, 0.0)


def test_answers_of_old_requests_do_not_bring_it_back_early() -> None:
    health = machine()
    now = 0.0
    for _ in range(2):
        for _ in range(3):
            now += EVERY
            look(health, now, up=False)
        if health.hold:
            break
        for _ in range(2):
            now += EVERY
            look(health, now, up=True)
    health.succeeded(now + 1.0)
    assert health.state is State.DOWN


def test_with_fast_checks_it_is_watched_for_as_much_shorter() -> None:
    health = Health("a", HealthSettings(every=0.05, fail_after=1, recover_after=1))
    health.alive(0.0)
    for start in (1.0, 2.0):
        look(health, start, up=False)
        look(health, start + 0.05, up=True)
    assert (health.state, health.hold) == (State.DOWN, QUIET_LEAST * 0.05)
    look(health, 2.05 + health.hold, up=True)
    assert health.state is State.READY
