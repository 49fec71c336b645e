"""The health machine alone: evidence in, states out, time passed in."""

from __future__ import annotations

from gateway.domain.health_machine import Health
from gateway.domain.health_state import STALL_LEAST, STEADY, State, Transition
from tests.health.machine import SETTINGS, canaried, ready, state

# -- liveness ---------------------------------------------------------------------------------------------------------


def test_a_new_backend_is_ready_after_one_good_check() -> None:
    health = Health("a", SETTINGS)
    assert health.usable(0.0), "not looked at yet: it is tried when asked for"
    assert health.alive(1.0) == Transition("a", State.UNKNOWN, State.READY, "answers its health check", 1.0)


def test_a_new_backend_that_is_not_there_is_warming_and_not_used() -> None:
    health = Health("a", SETTINGS)
    health.dead("refused", 1.0, refused=True)
    assert (health.state, health.usable(1.0), health.starting(1.0)) == (State.WARMING, False, True)
    health.alive(2.0)
    assert state(health) is State.READY


def test_a_backend_that_has_not_come_within_start_grace_is_down() -> None:
    health = Health("a", SETTINGS)
    health.dead("refused", 1.0, refused=True)
    health.dead("refused", 899.0, refused=True)
    assert state(health) is State.WARMING
    health.dead("refused", 900.0, refused=True)
    assert (health.state, health.starting(900.0)) == (State.DOWN, False)


def test_a_backend_that_was_down_and_answers_that_it_is_loading_is_warming() -> None:
    """A new process: its port was closed in between. The same process that says 503 stays down."""
    ill, restarted = ready(), ready()
    for health, refused in ((ill, False), (restarted, True)):
        for _ in range(3):
            health.dead("503", 1.0, refused=refused, answered=not refused)
        assert state(health) is State.DOWN
        health.dead("503", 2.0, answered=True)
    assert (ill.state, restarted.state) == (State.DOWN, State.WARMING)
    restarted.dead("refused", 3.0, refused=True)
    assert state(restarted) is State.DOWN, "it has died again"


def test_a_backend_goes_down_after_fail_after_bad_checks_in_a_row() -> None:
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


def test_a_backend_comes_back_after_recover_after_good_checks_in_a_row() -> None:
    health = ready()
    for _ in range(3):
        health.dead("503", 1.0)
    health.alive(2.0)
    health.dead("503", 3.0)
    health.alive(4.0)
    assert state(health) is State.DOWN, "two good checks, but not in a row"
    health.alive(5.0)
    assert state(health) is State.READY


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


# -- canaries ---------------------------------------------------------------------------------------------------------


def test_a_backend_that_was_gone_is_warmed_up_and_proved_before_it_is_used() -> None:
    health = canaried()
    for _ in range(3):
        health.dead("refused", 1.0, refused=True)
    health.alive(2.0)
    assert (health.state, health.proof_due(2.0)) == (State.DOWN, False)
    health.alive(3.0)
    assert (health.state, health.usable(3.0), health.proof_due(3.0)) == (State.WARMING, False, True)
    for second in range(4, 100):
        health.alive(float(second))
        assert state(health) is State.WARMING, "checks alone are no proof"
    health.proved(100.0)
    assert state(health) is State.READY


def test_a_verdict_of_requests_is_cleared_by_a_canary_and_no_client_is_put_on_trial() -> None:
    health = canaried()
    for _ in range(3):
        health.failed("500", 1.0)
    health.alive(1.5)
    health.alive(1.6)
    assert not health.proof_due(1.6), "its pause is not over"
    health.alive(4.0)
    assert (health.state, health.usable(4.0), health.proof_due(4.0)) == (State.DOWN, False, True)
    health.disproved("silence", 5.0)
    health.alive(5.1)
    health.alive(5.2)
    assert (health.state, health.proof_due(8.9)) == (State.DOWN, False), "a longer one"
    assert health.proof_due(9.0)
    health.proved(10.0)
    assert state(health) is State.READY


def test_a_canary_without_an_answer_while_it_may_be_starting_leaves_it_warming() -> None:
    health = Health("a", SETTINGS, canaried=True)
    health.dead("refused", 1.0, refused=True)
    health.alive(2.0)
    assert health.proof_due(2.0)
    health.disproved("503", 3.0)
    assert (health.state, health.reason) == (State.WARMING, "503")
    health.disproved("503", 901.0)
    assert state(health) is State.DOWN


def test_a_wrong_answer_makes_it_the_last_choice_until_it_is_asked_again() -> None:
    health = canaried()
    health.doubted("12*17 is 205", 1.0)
    assert (health.state, health.usable(1.0)) == (State.SUSPECT, True)
    for second in range(2, 800):
        health.alive(float(second))
    assert (health.state, health.proof_due(800.0)) == (State.SUSPECT, False)
    health.alive(901.0)
    assert health.proof_due(901.0)


# -- a stall ----------------------------------------------------------------------------------------------------------


def test_a_stall_takes_it_out_at_once_and_each_further_one_for_longer() -> None:
    health = canaried()
    pauses, now = [], 1.0
    for _ in range(8):
        health.stalled("stood still for 20 s", now)
        assert (health.state, health.usable(now)) == (State.DOWN, False)
        pauses.append(health.retry_at - now)
        now = health.retry_at
        health.proved(now)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]


def test_after_a_long_good_time_a_stall_is_the_first_again() -> None:
    health = canaried()
    health.stalled("stood still", 1.0)
    health.proved(20.0)
    health.stalled("stood still", 20.0 + STEADY)
    assert health.retry_at == 20.0 + STEADY + STALL_LEAST


def test_streams_that_end_with_a_stall_do_not_make_it_worse() -> None:
    health = canaried()
    health.stalled("stood still", 1.0)
    for _ in range(8):
        health.failed("silence", 1.1)
    assert (health.retry_at, health.reason) == (1.0 + STALL_LEAST, "stood still")


# -- busy, draining ---------------------------------------------------------------------------------------------------


def test_busy_is_ready_with_nothing_free() -> None:
    health = ready()
    assert health.load(True, 1.0) is None, "one look may be a moment"
    assert health.load(True, 2.0) == Transition("a", State.READY, State.BUSY, "every slot is in use", 2.0)
    assert health.usable(2.0)
    health.succeeded(2.5)
    health.alive(2.6)
    assert state(health) is State.BUSY
    health.load(False, 3.0)
    assert state(health) is State.READY
    health.load(True, 4.0)
    health.load(True, 5.0)
    health.failed("500", 6.0)
    assert state(health) is State.SUSPECT
