"""Health while and after a backend is drained."""

from __future__ import annotations

from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from tests.health.machine import EVENTS, NEVER_PROBED, canaried, ready


def test_draining_takes_nothing_new_whatever_happens_until_it_is_resumed() -> None:
    health = ready()
    health.drain(1.0)
    for event in EVENTS.values():
        event(health, 2.0)
        assert (health.state, health.usable(2.0)) == (State.DRAINING, False)


def test_after_a_drain_it_is_used_at_once_only_if_nothing_has_happened_to_it() -> None:
    quiet, restarted, failed = canaried(), canaried(), canaried()
    failed.failed("500", 0.5)
    for health in (quiet, restarted, failed):
        health.drain(1.0)
        health.alive(2.0)
    restarted.dead("refused", 3.0, refused=True)
    restarted.alive(4.0)
    for health in (quiet, restarted, failed):
        health.resume(5.0)
    assert [health.state for health in (quiet, restarted, failed)] == [State.READY, State.WARMING, State.WARMING]
    restarted.alive(6.0)
    restarted.alive(7.0)
    assert restarted.proof_due(7.0)


def test_a_cloud_is_tried_again_after_a_drain() -> None:
    health = Health("cloud", NEVER_PROBED)
    health.drain(1.0)
    health.resume(2.0)
    assert (health.state, health.usable(2.0)) == (State.UNKNOWN, True)
