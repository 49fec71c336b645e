"""Health of a backend that requests start."""

from __future__ import annotations

import pytest

from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from tests.health.machine import SETTINGS

GRACE = SETTINGS.start_grace


def parked() -> Health:
    health = Health("a", SETTINGS, on_demand=True, on_request=True)
    health.dead("refused", 1.0, refused=True)
    return health


def summoned() -> Health:
    health = parked()
    assert health.summon("a request starts it", 2.0) is not None
    return health


def test_a_requested_backend_is_parked_until_a_request_starts_it() -> None:
    health = parked()
    assert (health.state, health.reason, health.startable) == (State.PARKED, "starts on request", True)


def test_while_it_starts_it_is_warming_whatever_its_checks_say() -> None:
    health = summoned()
    for n in range(50):
        assert health.dead("refused", 2.0 + n * GRACE, refused=True) is None
    assert (health.state, health.reason) == (State.WARMING, "a request starts it")
    assert not health.startable
    transition = health.alive(9.0)
    assert transition is not None
    assert (transition.after, health.summoned) == (State.READY, False)


def test_when_it_goes_after_that_it_is_parked_again_and_no_failure() -> None:
    health = summoned()
    health.alive(3.0)
    for _ in range(SETTINGS.fail_after):
        health.dead("refused", 4.0, refused=True)
    assert (health.state, health.startable) == (State.PARKED, True)


def test_a_start_that_failed_leaves_it_parked() -> None:
    health = summoned()
    assert health.dismiss("its start failed", 3.0) is not None
    assert (health.state, health.reason, health.startable) == (State.PARKED, "its start failed", True)
    assert health.dead("refused", 4.0, refused=True) is None


def test_one_that_has_become_ready_meanwhile_is_not_dismissed() -> None:
    health = summoned()
    health.alive(3.0)
    assert health.dismiss("its start failed", 4.0) is None
    assert health.state is State.READY


@pytest.mark.parametrize("order", ["drain", "park"])
def test_what_an_operator_or_the_mode_decides_wins(order: str) -> None:
    health = parked()
    health.drain(2.0) if order == "drain" else health.park("outside mode 'm'", 2.0)
    assert not health.startable
    assert health.summon("a request starts it", 3.0) is None
    health = summoned()
    health.drain(3.0) if order == "drain" else health.park("outside mode 'm'", 3.0)
    assert not health.summoned


def test_only_what_requests_start_is_startable() -> None:
    health = Health("a", SETTINGS, on_demand=True)
    health.dead("refused", 1.0, refused=True)
    assert (health.state, health.reason, health.startable) == (State.PARKED, "run: on_demand and not there", False)
