"""Health outside the mode in force: parked whatever the evidence, and what counts when the mode contains it again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from tests.health.machine import EVENTS, NEVER_PROBED, OPERATOR, SETTINGS, canaried, down_by_requests, ready

WHY = "outside mode 'ds4'"
GRACE = SETTINGS.start_grace


@given(st.lists(st.sampled_from([*EVENTS.items(), *OPERATOR.items()]), max_size=12), st.booleans(), st.booleans())
def test_no_evidence_moves_a_backend_outside_the_mode(events: list[Any], on_demand: bool, canary: bool) -> None:
    health = canaried() if canary else ready()
    health.on_demand = on_demand
    health.park(WHY, 1.0)
    for n, (_, event) in enumerate(events):
        assert event(health, 2.0 + n) is None
        assert (health.state, health.reason) == (State.PARKED, WHY)
        assert not health.usable(1e6)
        assert not health.due(1e6)
        assert not health.proof_due(1e6)
        assert not health.starting(2.0 + n)


def test_another_mode_is_another_reason_and_no_transition() -> None:
    health = ready()
    assert health.park(WHY, 1.0) is not None
    assert health.park("outside mode 'judges'", 2.0) is None
    assert health.reason == "outside mode 'judges'"


def test_a_parked_backend_that_answered_meanwhile_is_used_at_once_without_canaries() -> None:
    health = ready()
    health.park(WHY, 1.0)
    health.alive(2.0)
    health.unpark(3.0)
    assert health.state is State.READY


def test_a_parked_backend_that_answered_meanwhile_has_to_pass_its_canary() -> None:
    health = canaried()
    health.park(WHY, 1.0)
    health.alive(2.0)
    health.unpark(3.0)
    assert health.state is State.WARMING
    assert health.proof_due(3.0)


def test_a_parked_backend_that_is_not_there_has_its_whole_start_grace() -> None:
    health = ready()
    health.park(WHY, 1.0)
    health.dead("refused", 2.0, refused=True)
    later = 10 * GRACE
    health.unpark(later)
    for _ in range(10):
        health.dead("refused", later + GRACE - 1.0, refused=True)
    assert (health.state, health.starting(later + GRACE - 1.0)) == (State.WARMING, True)
    health.dead("refused", later + GRACE, refused=True)
    assert health.state is State.DOWN


def test_failures_from_before_do_not_count_in_the_next_mode() -> None:
    health = down_by_requests()
    health.park(WHY, 2.0)
    health.alive(3.0)
    health.unpark(4.0)
    assert (health.state, health.retry_at, health.falls) == (State.READY, 0.0, 0)


def test_a_backend_on_demand_that_is_not_there_is_parked_again_for_that() -> None:
    health = ready()
    health.on_demand = True
    health.park(WHY, 1.0)
    health.dead("refused", 2.0, refused=True)
    health.unpark(2.5)
    health.dead("refused", 3.0, refused=True)
    assert (health.state, health.reason) == (State.PARKED, "run: on_demand and not there")


def test_a_drain_outlives_the_mode_and_so_does_its_end() -> None:
    before, meanwhile, resumed = ready(), ready(), ready()
    before.drain(1.0)
    resumed.drain(1.0)
    for health in (before, meanwhile, resumed):
        health.park(WHY, 2.0)
        health.alive(2.5)
    meanwhile.drain(3.0)
    resumed.resume(3.0)
    assert [health.state for health in (before, meanwhile, resumed)] == [State.PARKED] * 3
    for health in (before, meanwhile, resumed):
        health.unpark(4.0)
    assert [h.state for h in (before, meanwhile, resumed)] == [State.DRAINING, State.DRAINING, State.READY]


def test_a_backend_that_is_never_probed_is_tried_again() -> None:
    health = Health("a", NEVER_PROBED)
    health.park(WHY, 1.0)
    health.unpark(2.0)
    assert (health.state, health.usable(2.0)) == (State.UNKNOWN, True)


def test_a_backend_that_was_not_parked_keeps_its_state() -> None:
    health = ready()
    assert health.unpark(1.0) is None
    assert health.state is State.READY
