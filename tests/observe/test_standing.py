"""Who serves an alias, by the health of its backends; and what of a reason is shown."""

from __future__ import annotations

from typing import Literal

import pytest

from gateway.config.snapshot import Alias, CloudWhen
from gateway.domain.health_state import State
from gateway.routing.alias_status import REASON_MOST, AliasView, BackendView, shown, view_alias

CLOUDS = frozenset({"cloud", "cloud2"})


def view(
    steps: str, away: str = "", parked: str = "", trial: str = "", cloud_when: tuple[CloudWhen, ...] = ("down",)
) -> AliasView:
    """`steps`: "a|b c" = a and b side by side, then c. Those not named otherwise are ready."""
    chain = tuple(tuple(step.split("|")) for step in steps.split())
    views = {}
    for name in [name for step in chain for name in step]:
        state = State.DOWN if name in away.split() else State.PARKED if name in parked.split() else State.READY
        state = State.SUSPECT if name in trial.split() else state
        views[name] = BackendView(name, state, "why", name in parked.split(), name in trial.split())
    return view_alias(Alias("w", chain, cloud_when=cloud_when), views, CLOUDS)


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
def test_who_serves(
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


def test_one_on_trial_does_not_serve_everybody() -> None:
    assert view("a b", trial="a").course == "fallback"


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
    assert shown(reason) == told


def test_a_long_reason_is_cut() -> None:
    assert len(shown("x" * 10_000)) == REASON_MOST
