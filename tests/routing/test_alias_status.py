"""Who serves an alias, and because of whose health; and what of a reason is shown."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from gateway.config.snapshot import CloudWhen
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.routing.alias_status import REASON_MOST, AliasView, public_reason, view_alias
from tests.routing.parts import NOW, Condition, alias, backend, fleet


def member(name: str, state: State = State.READY, condition: Condition = "ok", **keys: Any) -> BackendState:
    """Outside the LAN when its name says so."""
    made = backend(name, condition, cloud=name.startswith("cloud"), **keys)
    made.health.state, made.health.reason = state, "why"
    return made


def view(
    steps: str, away: str = "", parked: str = "", trial: str = "", cloud_when: tuple[CloudWhen, ...] = ("down",)
) -> AliasView:
    """`steps`: "a|b c" = a and b side by side, then c. Those not named otherwise are ready."""
    chain = tuple(tuple(step.split("|")) for step in steps.split())
    states = []
    for name in [name for step in chain for name in step]:
        state = State.DOWN if name in away.split() else State.PARKED if name in parked.split() else State.READY
        states.append(member(name, state, run="on_demand" if name in parked.split() else "always"))
        if name in trial.split():
            states[-1].health.state, states[-1].health.half_open = State.SUSPECT, True
    return view_alias(alias(*chain, cloud_when=cloud_when), fleet(*states), NOW)


@pytest.mark.parametrize(
    ("steps", "away", "parked", "course", "serving"),
    [
        ("a b", "", "", "home", "a"),
        ("a b", "b", "", "home", "a"),
        ("a b", "a", "", "fallback", "b"),
        ("a b", "a b", "", "nothing", ""),
        ("a|b c", "a", "", "home", "b"),
        ("a|b c", "", "", "home", "a b"),
        ("a|b c", "a b", "", "fallback", "c"),
        ("a b", "", "a", "home", "b"),
        ("a b c", "b", "a", "fallback", "c"),
        ("a|b c", "b", "a", "fallback", "c"),
        ("a b", "b", "a", "nothing", ""),
        ("a b", "", "a b", "parked", ""),
        ("a cloud", "a", "", "cloud", "cloud"),
        ("a cloud", "", "a", "cloud", "cloud"),
        ("a b cloud", "a", "", "fallback", "b"),
        ("a cloud", "a cloud", "", "nothing", ""),
        ("cloud a", "", "", "home", "cloud"),
        ("cloud a", "cloud", "", "fallback", "a"),
        ("cloud cloud2 a", "cloud", "", "fallback", "cloud2"),
    ],
)
def test_which_backend_serves_an_alias(
    steps: str, away: str, parked: str, course: Literal["home", "fallback", "cloud", "nothing", "parked"], serving: str
) -> None:
    found = view(steps, away, parked)
    assert (found.course, found.serving) == (course, tuple(serving.split()))
    chain = [step.split("|") for step in steps.split()]
    assert found.step == next((i for i, step in enumerate(chain) if set(step) & set(found.serving)), None)


@pytest.mark.parametrize("cloud_when", [(), ("too_long",), ("busy", "incapable")])
def test_a_cloud_that_may_not_be_entered_serves_nobody(cloud_when: tuple[CloudWhen, ...]) -> None:
    found = view("a cloud", "a", cloud_when=cloud_when)
    assert found.course == "nothing"
    assert found.why == "a is down (why); cloud may not be entered (cloud_when)"
    assert view("cloud", cloud_when=cloud_when).course == "home"


def test_a_backend_on_trial_does_not_serve_everybody() -> None:
    found = view("a b", trial="a")
    assert (found.course, found.why) == ("fallback", "a is suspect (why)")


@pytest.mark.parametrize("when", [("down",), (), ("busy", "incapable")])
def test_a_cloud_beside_a_local_backend_that_is_down_is_entered_where_the_alias_lets_it(
    when: tuple[CloudWhen, ...],
) -> None:
    assert view("a|cloud", cloud_when=when).serving == ("a", "cloud")
    assert view("a|cloud", "a", cloud_when=when).serving == (("cloud",) if "down" in when else ())


def test_a_pause_that_a_backend_asked_for_is_no_matter_of_health() -> None:
    paused = view_alias(alias("a", "b"), fleet(member("a", condition="cooldown"), member("b")), NOW)
    assert (paused.course, paused.serving) == ("home", ("a",))


def test_a_step_that_can_serve_no_request_of_the_alias_does_not_count_and_is_no_failure() -> None:
    never = member("a", thinking="never")
    thinking = alias("a", "b", thinking="on")
    found = view_alias(thinking, fleet(never, member("b")), NOW)
    assert (found.course, found.step, found.serving) == ("home", 1, ("b",))
    assert found.why == "a cannot think (thinking: never in routes.yaml)"
    nobody = view_alias(thinking, fleet(never, member("b", State.DOWN)), NOW)
    assert (nobody.course, nobody.why.split("; ")[1]) == ("nothing", "b is down (why)")
    parked = view_alias(thinking, fleet(never, member("b", State.PARKED, run="on_demand")), NOW)
    assert parked.course == "parked"
    assert view_alias(alias("a", thinking="on"), fleet(never), NOW).course == "nothing"


def test_an_alias_of_embeddings_serves_though_it_was_asked_for_a_chat() -> None:
    pooling = member("a")
    pooling.facts.learn_lack("endpoint:chat", NOW)
    assert view_alias(alias("a"), fleet(pooling), NOW).course == "home"
    assert view_alias(alias("a", "b"), fleet(pooling, member("b", State.DOWN)), NOW).course == "home"


@pytest.mark.parametrize(("state", "course"), [(State.READY, "home"), (State.DOWN, "nothing")])
def test_of_a_server_that_no_endpoint_leads_to_only_its_health_counts(state: State, course: str) -> None:
    assert view_alias(alias("a"), fleet(member("a", state, engine="http")), NOW).course == course


def test_why_names_each_that_does_not_serve() -> None:
    assert view("a|b c", "a b").why == "a is down (why); b is down (why)"
    assert view("a b c", "b", "a").why == "a is parked; b is down (why)"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("connection refused", "connection refused"),
        ("answered 500: you said: my secret prompt", "answered 500"),
        ("its canary was answered 503: busy with 'my secret prompt'", "its canary was answered 503"),
        ("failure: Ollama answered 200 with an error: my secret prompt", "failure"),
        ("failure: EngineCore died on\n my secret prompt", "failure"),
        ("failure: ended with finish_reason abort", "failure: ended with finish_reason abort"),
        ("does not serve this model: The model my secret prompt", "does not serve this model"),
        ("does not serve model 'x'; it serves: y, z", "does not serve model 'x'; it serves: y, z"),
        ("two\nlines", "two lines"),
    ],
)
def test_a_backends_own_words_are_not_shown(reason: str, told: str) -> None:
    assert public_reason(reason) == told


def test_a_long_reason_is_cut() -> None:
    assert len(public_reason("x" * 10_000)) == REASON_MOST
