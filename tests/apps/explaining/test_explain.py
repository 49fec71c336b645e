"""What is explained of a request is what the planner does with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.explaining.explain import explain
from gateway.routing.plan import make_plan
from tests.routing.fleets import BODIES, Case, asked, cases
from tests.routing.parts import NOW, alias, backend, fleet
from tests.routing.test_serving import MANY, tried


@MANY
@given(cases(), st.sampled_from(sorted(BODIES)))
def test_explain_says_of_each_backend_what_the_planner_does_with_the_request(case: Case, need: str) -> None:
    told = explain(case.alias, case.states, asked(need), NOW)
    plan = make_plan(case.alias, case.states, asked(need), NOW)
    if told["resort"] is not None:
        assert not list(tried(plan))
        plan = make_plan(case.alias, case.states, asked(need), NOW, resort=told["resort"])
    order = list(tried(plan))
    assert (told["order"], told["served"], told["error"] is None) == (order, bool(order), bool(order))
    skips = {skip.state.name: skip.reason for skip in plan.skipped}
    adapted = {c.state.name: c.adapt for c in plan.candidates}
    for one in (one for step in told["steps"] for one in step["backends"]):
        name, reasons = one["backend"], " ".join(one["reasons"])
        assert (one["verdict"] == "skip") == (name not in order)
        if name in skips:
            assert one["reasons"] == [skips[name]]
            continue
        adapt = adapted[name]
        assert ("the gateway makes the call" in reasons) == adapt.emulate
        assert ("nothing is known to force a call" in reasons) == (adapt.verify and not adapt.emulate)
        assert ("its answer is" in reasons) == adapt.verify


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_call_that_the_gateway_makes_for_an_ollama_is_served_and_explained_once(choice: str) -> None:
    states = fleet(backend("a", engine="ollama", tool_parser=None))
    told = explain(alias("a"), states, asked(choice), NOW)
    (one,) = told["steps"][0]["backends"]
    assert (told["served"], one["verdict"], one["capabilities"]["required"]["value"]) == (True, "use", "emulated")
    assert one["reasons"] == [
        "the gateway makes the call: its answer is forced into a schema of the tools, and checked"
    ]
