"""Plans with backends that requests start: what is started, what a request gets meanwhile, and which clouds stay
shut."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apps.standby.standby import is_taken
from gateway.config.snapshot import Alias, Client, CloudWhen
from gateway.domain.backend import BackendState
from gateway.domain.health_state import StartDecision, State
from gateway.routing.alias_status import view_alias
from gateway.routing.plan import Plan, make_plan
from gateway.routing.refusal import refusal
from gateway.routing.serving import can_serve
from tests.routing.parts import NOW, alias, backend, fleet, request


def called(name: str, *, starting: bool = False, **keys: Any) -> BackendState:
    """A parked backend that requests start; `starting`: it is being started."""
    state = backend(name, "parked", run="on_request", **keys)
    state.health.on_request = state.health.on_demand = True
    if starting:
        state.health.summon("a request starts it", NOW)
    return state


def planned(
    of: Alias, *states: BackendState, refused: str | None = None, wait: float | None = None, **body: Any
) -> Plan:
    def refuses(state: BackendState, client: Client | None, of: Alias) -> StartDecision:
        return StartDecision(refused or "", wait=wait)

    return make_plan(of, fleet(*states), request(**body), NOW, refuses_start=refuses)


def names(plan: Plan) -> tuple[list[str], list[str]]:
    """(the candidates, what the request may have started)."""
    return [c.state.name for c in plan.candidates], [s.state.name for s in plan.startable]


def test_the_next_step_serves_while_it_starts() -> None:
    plan = planned(alias("a", "b"), called("a"), backend("b"))
    assert names(plan) == (["b"], ["a"])
    assert plan.detour(plan.candidates[0]) == ("routed", "busy")


def test_no_other_step_serves_during_a_start_if_the_alias_waits() -> None:
    waiting = alias("a", "b", while_starting="wait")
    assert names(planned(waiting, called("a"), backend("b"))) == ([], ["a"])
    assert names(planned(waiting, called("a", starting=True), backend("b"))) == ([], [])
    plan = planned(waiting, called("a"), backend("b"), refused="it does not fit")
    assert names(plan) == (["b"], [])
    assert plan.detour(plan.candidates[0]) == ("fallback", "parked")


@pytest.mark.parametrize(("wait", "told"), [(240.0, 240.0), (0.2, 1.0), (None, 30.0)])
def test_a_refused_start_says_when_it_is_worth_asking_again(wait: float | None, told: float) -> None:
    plan = planned(alias("a"), called("a"), refused="b runs for less than its min_run (300 s)", wait=wait)
    error = refusal(plan, [], request(), NOW)
    assert (error.code, error.retry_after) == ("no_backend_available", told)


@pytest.mark.parametrize("while_starting", ["wait", "next"])
def test_a_backend_that_serves_already_is_used_instead_of_a_start(while_starting: Any) -> None:
    for of in (alias(("a", "b"), "c", while_starting=while_starting), alias("b", "a", while_starting=while_starting)):
        plan = planned(of, called("a"), backend("b"), backend("c"))
        assert plan.candidates[0].state.name == "b"


def test_while_one_starts_no_other_is_started() -> None:
    plan = planned(alias("a", "b"), called("a", starting=True), called("b"))
    assert names(plan) == ([], [])


def test_no_backend_is_started_that_could_not_serve_the_request() -> None:
    long = [{"role": "user", "content": "word " * 2000}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    small, dumb = called("a", context=100), called("a", tool_parser="none")
    for state, body in ((small, {"messages": long}), (dumb, {"tools": tools})):
        plan = planned(alias("a"), state, **body)
        assert names(plan) == ([], [])
        assert plan.skipped[0].kind in ("too_long", "incapable")


def test_a_backend_that_answers_without_tools_alone_is_not_asked_while_it_is_parked() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    of = alias("a", on_unsupported="strip")
    states = fleet(called("a", tool_parser="none"))
    assert make_plan(of, states, request(tools=tools), NOW, resort="strip").candidates == []


@pytest.mark.parametrize("starting", [False, True])
@pytest.mark.parametrize(("cloud_when", "opens"), [(("down",), False), (("busy",), True), (("down", "busy"), True)])
def test_a_start_opens_no_cloud_that_is_for_failures(
    starting: bool, cloud_when: tuple[CloudWhen, ...], opens: bool
) -> None:
    of = alias("a", "cloud", cloud_when=cloud_when)
    plan = planned(of, called("a", starting=starting), backend("cloud", cloud=True))
    assert plan.may_enter(plan.candidates[0]) is opens


def test_a_backend_that_cannot_be_started_is_out_as_one_that_is_down() -> None:
    plan = planned(alias("a", "cloud"), called("a"), backend("cloud", cloud=True), refused="it does not fit")
    assert plan.may_enter(plan.candidates[0])


def test_the_error_says_why_nothing_is_started() -> None:
    error = refusal(planned(alias("a"), called("a"), refused="it does not fit"), [], request(), NOW)
    assert (error.status, error.code, error.retry_after) == (503, "no_backend_available", 30)
    assert error.message.endswith("a is parked: it does not fit")
    error = refusal(planned(alias("a"), called("a", starting=True)), [], request(), NOW)
    assert (error.status, error.code) == (429, "backend_warming")


@pytest.mark.parametrize("starting", [False, True])
def test_an_alias_whose_backends_start_on_request_is_ready_and_in_no_trouble(starting: bool) -> None:
    states = fleet(called("a", starting=starting), backend("b"))
    assert can_serve(alias("a"), states, NOW)
    assert view_alias(alias("a"), states, NOW).course == "parked"
    assert view_alias(alias("a", "b", while_starting="wait"), states, NOW).course == "home"


def test_no_fallback_is_loaded_ahead_beside_a_backend_that_was_started() -> None:
    small = backend("small", engine="ollama", url="http://spark1:11434", nodes=("n1",), model="m")
    large = called("large", url="http://spark1:8000", nodes=("n1",))
    for in_mode in (True, False):
        assert not is_taken(small, fleet(small, large), in_mode)
    large.health.summon("a request starts it", NOW)
    for in_mode in (True, False):
        assert is_taken(small, fleet(small, large), in_mode)
    large.health.dismiss("stopped", NOW)
    assert large.health.state is State.PARKED
    assert not is_taken(small, fleet(small, large), False)
