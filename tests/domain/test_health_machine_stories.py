"""The health machine alone: any sequence of events leaves it sound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.health_machine import BACKOFF_LEAST, BACKOFF_MOST, Health
from gateway.domain.health_state import QUIET_MOST, STALL_MOST, WELL, State, Transition
from tests.health.machine import EVENTS, NEVER_PROBED, OPERATOR, SETTINGS, UNLESS_TOLD, state, unhurried


@unhurried
@given(
    on_demand=st.booleans(),
    probed=st.booleans(),
    asked=st.booleans(),
    story=st.lists(st.tuples(st.sampled_from(sorted(EVENTS | OPERATOR)), st.floats(0, 100)), max_size=60),
)
def test_any_story_leaves_the_machine_sound(
    on_demand: bool, probed: bool, asked: bool, story: list[tuple[str, float]]
) -> None:
    health = Health("a", SETTINGS if probed else NEVER_PROBED, on_demand, canaried=asked)
    now = 0.0
    for name, passed in story:
        now += passed
        before, verdict = health.state, health.from_requests
        transition = (EVENTS | OPERATOR)[name](health, now)
        if state(health) is before:
            assert transition is None
        else:
            assert transition == Transition("a", before, health.state, health.reason, now)
            assert health.since == now
        if name == "alive" and verdict and before in UNLESS_TOLD:
            assert state(health) is not State.READY
            assert health.from_requests
        if name == "succeeded" and before is not State.DRAINING and not health.hold:
            assert (health.state in WELL, health.fails, health.from_requests) == (True, 0, False)
        if before is State.DRAINING and name != "resume":
            assert state(health) is State.DRAINING
        if before is State.WARMING and state(health) in WELL:
            assert name in ("proved", "succeeded") or (name == "alive" and not asked)
        assert BACKOFF_LEAST <= health.backoff <= BACKOFF_MOST
        assert health.retry_at <= now + max(STALL_MOST, SETTINGS.canary or 0.0)
        assert health.hold <= QUIET_MOST
        assert health.usable(now) or state(health) not in WELL
        assert not (health.half_open and health.state in (State.READY, State.BUSY, State.DOWN, State.WARMING))
        assert on_demand or state(health) is not State.PARKED
        health.starting(now)


@unhurried
@given(st.lists(st.sampled_from(["alive", "dead"]), max_size=60))
def test_probes_alone_take_it_down_and_bring_it_back(story: list[str]) -> None:
    """Whatever came before: good checks for long enough make it ready, enough bad ones take it down."""
    health = Health("a", SETTINGS)
    for second, name in enumerate(story):
        EVENTS[name](health, float(second))
    now = 100.0
    for _ in range(SETTINGS.recover_after):
        health.alive(now)
        now += QUIET_MOST
    assert state(health) is State.READY
    for _ in range(SETTINGS.fail_after):
        health.dead("refused", now)
    assert state(health) is State.DOWN
