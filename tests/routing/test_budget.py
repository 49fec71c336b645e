"""A spent budget in the plan and in the refusal: the chain goes on, 402 comes only when nothing else stands there."""

from __future__ import annotations

import pytest

from gateway.domain.backend import BackendState
from gateway.domain.request import InferenceRequest
from gateway.errors import GatewayError
from gateway.routing.plan import Plan, make_plan
from gateway.routing.refusal import FailedAttempt, refusal
from tests.routing.parts import NOW, Condition, alias, backend, fleet, request

TOOLS = [{"type": "function", "function": {"name": "f"}}]
SPENT = "has spent its 5 USD/day until 2030-01-01 00:00 UTC"


def cloud(name: str, condition: Condition = "ok") -> BackendState:
    return backend(name, condition, cloud=True, engine="openai")


def planned(*states: BackendState, spent: str, asked: InferenceRequest | None = None, **keys: object) -> Plan:
    """The plan for a chain of these; `spent` names those at their budget."""
    names = spent.split()
    return make_plan(
        alias(*(s.name for s in states), **keys),
        fleet(*states),
        asked or request(),
        NOW,
        over_budget=lambda state: SPENT if state.name in names else None,
    )


def refused(plan: Plan, *tried: FailedAttempt, asked: InferenceRequest | None = None) -> GatewayError:
    return refusal(plan, tried, asked or request(), NOW)


def test_the_chain_goes_on_and_says_why() -> None:
    plan = planned(cloud("c1"), cloud("c2"), spent="c1")
    assert [c.state.name for c in plan.candidates] == ["c2"]
    assert [(s.state.name, s.kind, s.reason) for s in plan.skipped] == [("c1", "budget", SPENT)]
    assert plan.may_enter(plan.candidates[0])
    assert plan.detour(plan.candidates[0]) == ("fallback", "budget")


def test_a_backend_that_could_not_serve_anyway_is_told_before_its_budget() -> None:
    plan = planned(cloud("c1", "down"), cloud("c2", "too_long"), spent="c1 c2")
    assert [s.kind for s in plan.skipped] == ["down", "too_long"]


def test_a_spent_budget_is_no_reason_to_leave_the_lan() -> None:
    plan = planned(backend("priced"), cloud("c1"), spent="priced")
    (candidate,) = plan.candidates
    assert not plan.may_enter(candidate)


def test_a_budget_alone_is_402_and_names_it() -> None:
    error = refused(planned(cloud("c1"), spent="c1"))
    assert (error.code, error.status) == ("budget_exceeded", 402)
    assert f"c1 {SPENT}" in error.message


@pytest.mark.parametrize(
    ("local", "code"),
    [
        ("down", "no_backend_available"),
        ("warming", "backend_warming"),
        ("cooldown", "rate_limit_exceeded"),
        ("misconfigured", "no_backend_available"),
        ("parked", "no_backend_available"),
        ("too_long", "context_length_exceeded"),
    ],
)
def test_where_something_else_stands_there_too_it_is_not_402(local: Condition, code: str) -> None:
    """Agents stop on 402: what may come back, and what they can mend themselves, is said instead."""
    error = refused(planned(backend("a", local), cloud("c1"), spent="c1", cloud_when=("down", "busy", "too_long")))
    assert error.code == code


def test_a_backend_that_could_never_serve_it_stands_in_nobodys_way() -> None:
    asked = request(tools=TOOLS)
    chain = (backend("a", "incapable"), cloud("c1"))
    plan = planned(*chain, spent="c1", asked=asked, cloud_when=("incapable",))
    assert refused(plan, asked=asked).code == "budget_exceeded"


def test_a_cloud_that_may_not_be_entered_is_not_kept_by_its_budget() -> None:
    asked = request(tools=TOOLS)
    plan = planned(backend("a", "incapable"), cloud("c1"), spent="c1", asked=asked)
    assert refused(plan, asked=asked).code == "tool_choice_unsupported"


def test_a_budget_that_was_spent_after_the_plan_counts_as_well() -> None:
    plan = planned(cloud("c1"), spent="")
    plan.outcomes["c1"] = "budget"
    assert refused(plan, FailedAttempt("c1", "budget", SPENT)).code == "budget_exceeded"


def test_a_failure_is_told_before_a_budget() -> None:
    plan = planned(backend("a"), cloud("c1"), spent="c1")
    plan.outcomes["a"] = "failed"
    assert refused(plan, FailedAttempt("a", "failed", "answered 500")).code == "upstream_error"


def test_the_last_resort_does_not_pay_either() -> None:
    asked = request(tools=TOOLS)
    states = (backend("a", "incapable"), cloud("c1"))
    first = planned(*states, spent="c1", asked=asked)
    again = make_plan(
        alias("a", "c1"),
        fleet(*states),
        asked,
        NOW,
        resort="strip",
        outcomes=first.outcomes,
        over_budget=lambda state: SPENT if state.name == "a" else None,
    )
    assert again.candidates == []
