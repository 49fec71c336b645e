"""Failures that a request may have caused itself take nobody out, until a harmless request fails too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.snapshot import HealthSettings
from gateway.domain.health_state import State
from tests.health.machine import EVENTS, NEVER_PROBED, SETTINGS, down_by_requests, ready, state, unhurried

HARMLESS = ("alive", "succeeded", "disputed", "cleared", "proved", "full", "free")


@unhurried
@given(
    st.sampled_from([SETTINGS, NEVER_PROBED]),
    st.lists(st.tuples(st.sampled_from(HARMLESS), st.floats(0.0, 1000.0)), max_size=40),
)
def test_disputed_failures_alone_never_take_a_backend_out(
    settings: HealthSettings, events: list[tuple[str, float]]
) -> None:
    health, now = ready(settings), 0.0
    for name, later in events:
        now += later
        EVENTS[name](health, now)
        assert health.state in (State.READY, State.BUSY, State.SUSPECT)
        assert health.usable(now)


def test_a_harmless_request_that_fails_too_makes_them_count() -> None:
    health = ready()
    for second in range(10):
        health.failed("500", float(second), disputed=True)
    assert state(health) is State.SUSPECT
    health.unanswered("500", 10.0)
    assert state(health) is State.DOWN


def test_harmless_requests_alone_take_it_out() -> None:
    health = ready()
    for second in range(SETTINGS.fail_after):
        assert state(health) is not State.DOWN
        health.unanswered("500", float(second))
    assert state(health) is State.DOWN


def test_a_harmless_request_that_is_answered_clears_the_backend() -> None:
    health = ready()
    health.failed("500", 1.0, disputed=True)
    health.unanswered("500", 1.1)
    health.cleared(2.0)
    assert (state(health), health.fails, health.from_requests, health.unanswered_lately) == (
        State.READY, 0, False, False
    )  # fmt: skip


def test_a_harmless_request_does_not_clear_what_a_canary_found_wrong() -> None:
    health = ready()
    health.doubted("12*17 is 42", 1.0)
    health.failed("500", 2.0, disputed=True)
    health.cleared(3.0)
    assert state(health) is State.SUSPECT


def test_a_harmless_request_brings_no_backend_back_before_its_checks_do() -> None:
    health = down_by_requests()
    health.cleared(2.0)
    assert state(health) is State.DOWN
    unprobed = down_by_requests(NEVER_PROBED)
    unprobed.cleared(2.0)
    assert state(unprobed) is State.READY


def test_one_that_refuses_our_key_and_is_never_probed_is_tried_again_by_one_request() -> None:
    health = ready(NEVER_PROBED)
    health.misconfigured("401", 1.0)
    assert not health.usable(600.0)
    assert health.usable(601.0)
    health.trial = True
    assert not health.usable(601.0)
    health.succeeded(602.0)
    assert state(health) is State.READY
