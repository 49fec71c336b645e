"""Routing past what the mode in force parks: steps, clouds, what is told of it, and the error when nothing is left."""

from __future__ import annotations

import pytest

from gateway.apps.standby.standby import fallbacks_needed, is_taken
from gateway.config.snapshot import CloudWhen
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.routing.alias_status import view_alias, view_backend
from gateway.routing.plan import Plan, make_plan
from gateway.routing.refusal import FailedAttempt, refusal
from tests.routing.parts import NOW, Condition, alias, backend, fleet, request


def member(name: str, outside: str = "", down: str = "") -> BackendState:
    """Outside the LAN when its name says so."""
    condition: Condition = "down" if name in down.split() else "ok"
    made = backend(name, condition, cloud=name.startswith("cloud"), url=f"http://{name}:1")
    if name in outside.split():
        made.health.park("outside mode 'm'", NOW)
    return made


def planned(steps: str, outside: str, down: str = "", cloud_when: tuple[CloudWhen, ...] = ("down",)) -> Plan:
    """`steps`: "a|b c" = a and b side by side, then c."""
    chain = alias(*(tuple(step.split("|")) for step in steps.split()), cloud_when=cloud_when)
    states = fleet(*(member(name, outside, down) for step in chain.steps for name in step))
    return make_plan(chain, states, request(), NOW)


def entered(plan: Plan) -> list[str]:
    """The backends that are tried as long as none fails."""
    return [candidate.state.name for candidate in plan.candidates if plan.may_enter(candidate)]


@pytest.mark.parametrize(
    ("steps", "outside", "down", "served"),
    [
        ("a b", "a", "", ["b"]),
        ("a cloud", "a", "", []),
        ("a|b cloud", "a b", "", []),
        ("a b cloud", "a", "b", ["cloud"]),
        ("a b cloud", "b", "a", ["cloud"]),
        ("a|cloud", "a", "", []),
        ("cloud a", "a", "", ["cloud"]),
    ],
)
def test_a_mode_is_neither_a_reason_to_enter_a_cloud_nor_one_against_it(
    steps: str, outside: str, down: str, served: list[str]
) -> None:
    assert entered(planned(steps, outside, down)) == served


def test_every_reason_of_cloud_when_together_does_not_cover_the_mode() -> None:
    assert entered(planned("a cloud", "a", cloud_when=("down", "too_long", "incapable", "busy"))) == []


@pytest.mark.parametrize(
    ("steps", "outside", "down", "detour"),
    [
        ("a b", "a", "", None),
        ("a b c", "a", "b", ("fallback", "down")),
        ("a|b c", "a", "b", ("fallback", "down")),
        ("a b", "", "a", ("fallback", "down")),
        ("a b cloud", "a", "b", ("fallback", "down")),
        ("a b|cloud", "a", "b", ("fallback", "down")),
    ],
)
def test_a_step_that_is_served_because_of_the_mode_is_no_fallback(
    steps: str, outside: str, down: str, detour: tuple[str, str] | None
) -> None:
    plan = planned(steps, outside, down)
    assert plan.detour(plan.candidates[0]) == detour


@pytest.mark.parametrize(
    ("steps", "outside", "down", "course"),
    [
        ("a b", "a", "", "home"),
        ("a|b c", "a", "", "home"),
        ("a b c", "a", "b", "fallback"),
        ("a b", "a", "b", "nothing"),
        ("a b", "a b", "", "parked"),
        ("a cloud", "a", "", "parked"),
        ("cloud a", "a", "cloud", "nothing"),
        ("a b cloud", "a", "b", "cloud"),
        ("a b cloud", "b", "a", "cloud"),
    ],
)
def test_the_course_of_an_alias_is_about_the_backends_of_the_mode(
    steps: str, outside: str, down: str, course: str
) -> None:
    chain = alias(*(tuple(step.split("|")) for step in steps.split()))
    states = fleet(*(member(name, outside, down) for step in chain.steps for name in step))
    assert view_alias(chain, states, NOW).course == course


def test_why_a_step_does_not_serve_names_the_mode() -> None:
    found = view_alias(alias("a", "b"), fleet(member("a", "a"), member("b")), NOW)
    assert (found.serving, found.why) == (("b",), "a is parked (outside mode 'm')")


def test_drift_of_a_parked_backend_is_not_shown() -> None:
    state = backend("a", context=1000)
    state.saw_model("a", 500)
    assert view_backend(state, NOW).drift
    state.health.park("outside mode 'm'", NOW)
    shown = view_backend(state, NOW)
    assert (shown.state, shown.reason, shown.drift) == (State.PARKED, "outside mode 'm'", ())


def test_the_error_names_the_mode_and_asks_nobody_to_wait() -> None:
    error = refusal(planned("a b", "a b"), [], request(), NOW)
    assert (error.code, error.status) == ("no_backend_available", 503)
    assert "a is parked (outside mode 'm'); b is parked (outside mode 'm')" in error.message


def test_a_backend_stopped_for_another_mode_while_it_was_tried_is_neither_a_failure_nor_coming_back() -> None:
    plan = planned("a", "")
    plan.candidates[0].state.health.park("outside mode 'm'", NOW)
    error = refusal(plan, [FailedAttempt("a", "failed", "refuses connections", gone=True)], request(), NOW)
    assert (error.code, error.status) == ("no_backend_available", 503)


# -- loading ahead ----------------------------------------------------------------------------------------------------


def ollama(name: str, host: str, *nodes: str) -> BackendState:
    return backend(name, engine="ollama", url=f"http://{host}:11434", nodes=nodes, model="m")


def test_a_fallback_is_needed_when_every_backend_of_the_mode_in_the_first_step_is_down() -> None:
    small = ollama("small", "mac")
    states = fleet(member("a", outside="a"), member("b", down="b"), small)
    assert fallbacks_needed({"x": alias("a", "b", "small")}, states) == {"small": frozenset()}
    assert fallbacks_needed({"x": alias(("a", "b"), "small")}, states) == {"small": frozenset()}
    assert fallbacks_needed({"x": alias("a", "small")}, states) == {}, "it serves by itself"
    small.health.park("outside mode 'm'", NOW)
    assert fallbacks_needed({"x": alias("a", "b", "small")}, states) == {}


def test_a_machine_is_taken_by_another_backend_of_the_mode() -> None:
    small, large = ollama("small", "spark1", "n1"), backend("large", url="http://spark1:8000", nodes=("n1", "n2"))
    states = fleet(small, large, member("elsewhere"))
    assert is_taken(small, states)
    assert not is_taken(ollama("other", "mac"), states)
    assert is_taken(ollama("unnamed", "spark1"), states), "by the host of its URL"
    large.health.state = State.DOWN
    assert is_taken(small, states), "there or not"
    large.health.park("outside mode 'm'", NOW)
    assert not is_taken(small, states)
    large.health.coming = True
    assert is_taken(small, states), "a switch under way brings it"
