"""The health machine alone: evidence in, states out, time passed in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.snapshot import HealthSettings
from gateway.health.state import BACKOFF_LEAST, BACKOFF_MOST, Health, State, Transition

unhurried = settings(deadline=None)  # the machine may be busy

SETTINGS = HealthSettings(every=5.0, fail_after=3, recover_after=2, start_grace=900.0)
NEVER_PROBED = HealthSettings(every=None, fail_after=3, recover_after=2)


def ready(settings: HealthSettings = SETTINGS, *, on_demand: bool = False) -> Health:
    health = Health("a", settings, on_demand)
    health.alive(0.0)
    assert state(health) is State.READY
    return health


def state(health: Health) -> State:
    """`health.state`, of which the type checker assumes that no call changes it."""
    return health.state


def down_by_requests(settings: HealthSettings = SETTINGS) -> Health:
    health = ready(settings)
    for _ in range(settings.fail_after):
        health.failed("500", 1.0)
    assert state(health) is State.DOWN
    return health


# -- liveness ---------------------------------------------------------------------------------------------------------


def test_a_new_backend_is_ready_after_one_good_check() -> None:
    health = Health("a", SETTINGS)
    assert health.usable(0.0), "not looked at yet: it is tried when asked for"
    assert health.alive(1.0) == Transition("a", State.UNKNOWN, State.READY, "answers its health check", 1.0)


def test_a_new_backend_that_is_not_there_is_down_at_once() -> None:
    health = Health("a", SETTINGS)
    health.dead("refused", 1.0)
    assert state(health) is State.DOWN


def test_it_goes_down_after_fail_after_bad_checks_in_a_row() -> None:
    health = ready()
    states = []
    for _ in range(3):
        health.dead("503", 1.0)
        states.append(health.state)
    assert states == [State.SUSPECT, State.SUSPECT, State.DOWN]
    assert not health.usable(1.0)


def test_a_good_check_between_bad_ones_starts_the_count_again() -> None:
    health = ready()
    for _ in range(5):
        health.dead("503", 1.0)
        health.dead("503", 2.0)
        health.alive(3.0)
        health.alive(4.0)
        assert state(health) is State.READY


def test_it_comes_back_after_recover_after_good_checks_in_a_row() -> None:
    health = ready()
    for _ in range(3):
        health.dead("503", 1.0)
    health.alive(2.0)
    health.dead("503", 3.0)
    health.alive(4.0)
    assert state(health) is State.DOWN, "two good checks, but not in a row"
    health.alive(5.0)
    assert state(health) is State.READY


# -- requests ---------------------------------------------------------------------------------------------------------


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


# -- misconfigured, parked, starting ----------------------------------------------------------------------------------


def test_misconfigured_is_left_by_one_request_after_its_model_list_is_right() -> None:
    health = ready()
    health.misconfigured("401", 1.0)
    assert (health.state, health.usable(1.0)) == (State.MISCONFIGURED, False)
    for second in range(2, 50):
        health.alive(float(second))
    assert state(health) is State.MISCONFIGURED
    health.configured(60.0)
    assert (health.state, health.half_open) == (State.SUSPECT, True)
    health.alive(61.0)
    assert state(health) is State.SUSPECT
    health.succeeded(62.0)
    assert state(health) is State.READY


def test_a_misconfigured_backend_that_dies_is_down() -> None:
    health = ready()
    health.misconfigured("401", 1.0)
    health.dead("refused", 2.0)
    assert state(health) is State.DOWN


def test_on_demand_and_not_there_is_parked_and_ready_as_soon_as_it_comes() -> None:
    health = Health("a", SETTINGS, on_demand=True)
    health.dead("refused", 1.0)
    assert (health.state, health.usable(1.0), health.starting(1.0)) == (State.PARKED, False, False)
    health.alive(2.0)
    assert state(health) is State.READY
    for _ in range(3):
        health.dead("refused", 3.0)
    assert state(health) is State.PARKED


def test_on_demand_and_gone_is_parked_also_when_requests_notice_it_first() -> None:
    """Never "just gone, wait for it": nobody may be told to wait for what was stopped on purpose."""
    health = ready(on_demand=True)
    for _ in range(4):
        health.failed("connection refused", 1.0)
    for _ in range(3):
        health.dead("refused", 2.0)
    assert (health.state, health.starting(2.0)) == (State.PARKED, False)
    health.failed("the last stream was reset", 3.0)
    assert state(health) is State.PARKED


def test_what_has_only_just_gone_may_come_back_and_what_is_long_gone_will_not() -> None:
    health = ready()
    for _ in range(3):
        health.dead("refused", 100.0)
    assert [health.starting(t) for t in (100.0, 999.0, 1001.0)] == [True, True, False]


def test_what_never_came_was_starting_for_start_grace_after_it_was_first_known() -> None:
    health = Health("a", SETTINGS, since=50.0, born=50.0)
    health.dead("refused", 60.0)
    assert [health.starting(t) for t in (60.0, 949.0, 951.0)] == [True, True, False]


# -- any sequence of events -------------------------------------------------------------------------------------------

EVENTS: dict[str, Callable[[Health, float], Transition | None]] = {
    "alive": lambda h, t: h.alive(t),
    "dead": lambda h, t: h.dead("refused", t),
    "succeeded": lambda h, t: h.succeeded(t),
    "failed": lambda h, t: h.failed("500", t),
    "misconfigured": lambda h, t: h.misconfigured("401", t),
    "configured": lambda h, t: h.configured(t),
}
UNLESS_TOLD = (State.DOWN, State.SUSPECT, State.MISCONFIGURED)  # not left for ready by good checks alone


@unhurried
@given(
    on_demand=st.booleans(),
    probed=st.booleans(),
    story=st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.floats(0, 100)), max_size=60),
)
def test_any_story_leaves_the_machine_sound(on_demand: bool, probed: bool, story: list[tuple[str, float]]) -> None:
    health = Health("a", SETTINGS if probed else NEVER_PROBED, on_demand)
    now = 0.0
    for name, passed in story:
        now += passed
        before, verdict = health.state, health.from_requests
        transition = EVENTS[name](health, now)
        if state(health) is before:
            assert transition is None
        else:
            assert transition == Transition("a", before, health.state, health.reason, now)
            assert health.since == now
        if name == "alive" and verdict and before in UNLESS_TOLD:
            assert state(health) is not State.READY
            assert health.from_requests
        if name == "succeeded":
            assert (health.state, health.fails, health.from_requests) == (State.READY, 0, False)
        assert BACKOFF_LEAST <= health.backoff <= BACKOFF_MOST
        assert health.retry_at <= now + BACKOFF_MOST
        assert health.usable(now) or state(health) is not State.READY
        assert not (health.half_open and health.state in (State.READY, State.DOWN))
        assert on_demand or state(health) is not State.PARKED
        health.starting(now)


@unhurried
@given(st.lists(st.sampled_from(["alive", "dead"]), max_size=60))
def test_probes_alone_take_it_down_and_bring_it_back(story: list[str]) -> None:
    """Whatever came before: enough good checks in a row make it ready, enough bad ones take it down."""
    health = Health("a", SETTINGS)
    for second, name in enumerate(story):
        EVENTS[name](health, float(second))
    for _ in range(SETTINGS.recover_after):
        health.alive(100.0)
    assert state(health) is State.READY
    for _ in range(SETTINGS.fail_after):
        health.dead("refused", 101.0)
    assert state(health) is State.DOWN
