"""How long a backend that is away is waited for."""

from __future__ import annotations

from gateway.domain.health_machine import Health
from tests.health.machine import SETTINGS, ready


def test_a_backend_that_has_only_just_gone_may_come_back_and_one_long_gone_will_not() -> None:
    health = ready()
    for _ in range(3):
        health.dead("refused", 100.0)
    assert [health.starting(t) for t in (100.0, 999.0, 1001.0)] == [True, True, False]


def test_a_backend_that_never_came_was_starting_for_start_grace_after_it_was_first_known() -> None:
    health = Health("a", SETTINGS, since=50.0, born=50.0)
    health.dead("refused", 60.0)
    assert [health.starting(t) for t in (60.0, 949.0, 951.0)] == [True, True, False]
