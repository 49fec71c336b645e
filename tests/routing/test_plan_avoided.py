"""A backend whose checks get no answer comes after all others in the LAN, and opens no cloud before it is down."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admission.capacity import availability_key, serves_now
from gateway.admission.failover import FailoverState
from gateway.domain.backend import BackendState
from gateway.routing.plan import Plan, make_plan
from tests.routing.parts import NOW, alias, backend, fleet, request


def silent(name: str, **keys: Any) -> BackendState:
    state = backend(name, "suspect", **keys)
    state.health.silent = True
    return state


def planned(*states: BackendState, steps: tuple[str | tuple[str, ...], ...] = ()) -> Plan:
    steps = steps or tuple(state.name for state in states)
    return make_plan(alias(*steps), fleet(*states), request(), NOW)


def names(plan: Plan) -> list[str]:
    return [candidate.state.name for candidate in plan.candidates]


CLOUD: dict[str, Any] = {"engine": "openai", "cloud": True, "context": 32768}


def test_later_local_steps_come_first() -> None:
    assert names(planned(silent("a"), backend("b"), backend("c"))) == ["b", "c", "a"]


def test_so_do_the_other_members_of_its_step() -> None:
    assert names(planned(silent("a"), backend("b"), backend("c"), steps=(("a", "b"), "c"))) == ["b", "c", "a"]


def test_clouds_stay_behind_it() -> None:
    plan = planned(silent("a"), backend("b"), backend("cloud", "ok", **CLOUD))
    assert names(plan) == ["b", "a", "cloud"]
    cloud = plan.candidates[-1]
    assert not plan.may_enter(cloud)
    plan.outcomes["b"] = "failed"
    assert not plan.may_enter(cloud)
    assert plan.may_enter(cloud, failing="a"), "when the attempt under way fails"


def test_one_that_requests_made_suspect_keeps_its_place() -> None:
    assert names(planned(backend("a", "suspect"), backend("b"))) == ["a", "b"]


def test_a_request_does_not_wait_for_it_beside_others() -> None:
    plan = planned(silent("a"), backend("b"), steps=(("a", "b"),))
    failover = FailoverState(lambda resort, outcomes: plan, None)
    assert [c.state.name for c in failover.acceptable(lambda state: True)] == ["b"]


@pytest.mark.parametrize(("state", "key", "serves"), [(silent("a"), "silent", False), (backend("a"), "usable", True)])
def test_requests_that_wait_are_planned_again_when_its_checks_get_no_answer(
    state: BackendState, key: str, serves: bool
) -> None:
    assert (availability_key(state, NOW), serves_now(state, NOW)) == (key, serves)
