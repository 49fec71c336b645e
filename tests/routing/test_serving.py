"""Who serves an alias: whatever is said about it is what the planner does with the requests of clients."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings

from gateway.api.models import describe
from gateway.api.ops import servable
from gateway.cli.serve import startup_report
from gateway.domain.backend import BackendState
from gateway.domain.health_state import SERVING
from gateway.routing.alias_status import view_alias
from gateway.routing.plan import KINDS, Plan, make_plan
from gateway.routing.serving import Need, members_now, request_with
from tests.routing.fleets import Case, asked, cases, turned
from tests.routing.parts import NOW

MANY = settings(max_examples=150, deadline=None)


def tried(plan: Plan) -> Iterator[str]:
    """The backends that a request asks when each one fails, as the gateway walks its plan."""
    for candidate in plan.candidates:
        if plan.may_enter(candidate):
            yield candidate.state.name
        plan.outcomes[candidate.state.name] = "failed"


def plain(case: Case) -> list[list[str]]:
    """Who is tried with a plain chat, in each order that the steps can have."""
    return [list(tried(make_plan(a, case.states, asked("chat"), NOW, turn=t))) for a, t in turned(case.alias)]


def after_pauses(case: Case) -> Case:
    """The same once the pauses that backends asked for are over."""
    for state in case.states.values():
        state.cooldown_until = 0.0
    return case


def steady(state: BackendState) -> bool:
    return state.health.state in SERVING and not state.health.half_open


# -- now: /status, the page, alerts, /ready, /v1/models, the startup report -------------------------------------------


@MANY
@given(cases())
def test_the_status_of_an_alias_is_what_the_planner_does_with_a_plain_chat(case: Case) -> None:
    found = view_alias(case.alias, case.states, NOW)
    serving = {name for order in plain(after_pauses(case)) for name in order if steady(case.states[name])}
    served = [(i, step) for i, step in enumerate(case.alias.steps) if serving & set(step)]
    first, step = served[0] if served else (None, ())
    assert (found.step, found.serving) == (first, tuple(name for name in step if name in serving))
    assert (found.course in ("nothing", "parked")) == (first is None)
    for name in found.serving:
        local_before = [n for step in case.alias.steps[: found.step] for n in step if not case.states[n].backend.cloud]
        assert found.course != "cloud" or (local_before and case.states[name].backend.cloud)


@MANY
@given(cases())
def test_a_fallback_is_for_health_alone_and_named_with_who_is_not_well(case: Case) -> None:
    found = view_alias(case.alias, case.states, NOW)
    plan = make_plan(case.alias, case.states, asked("chat"), NOW)
    kinds = {skip.state.name: skip.kind for skip in plan.skipped}
    before = [name for step in case.alias.steps[: found.step] for name in step]
    if found.course == "fallback":
        required = [name for name in before if case.states[name].backend.run == "always"]
        unwell = [name for name in required if KINDS[kinds.get(name, "down")] in ("down", "busy")]
        assert unwell or "(cloud_when)" in found.why
    for name in before:
        assert f"{name} " in found.why


@MANY
@given(cases())
def test_ready_is_whether_the_planner_would_send_a_plain_chat_to_anybody(case: Case) -> None:
    gateway: Any = SimpleNamespace(snapshot=case.snapshot, fleet=SimpleNamespace(states=case.states))
    ready = [found.name for found in servable(gateway, NOW)]
    report = startup_report(case.snapshot, case.states, NOW)[1]
    assert ready == ["alias"] * any(plain(after_pauses(case)))
    assert ("nobody can serve alias now" in report) == (not ready)


@MANY
@given(cases())
def test_models_name_who_serves_as_the_status_does(case: Case) -> None:
    gateway: Any = SimpleNamespace(snapshot=case.snapshot, fleet=SimpleNamespace(states=case.states), started=0.0)
    card = describe(gateway, case.alias, "alias", NOW)["x_gateway"]
    assert card["serving"] == list(view_alias(case.alias, case.states, NOW).serving)[:1]


@MANY
@given(cases(engines=("http",)))
def test_of_servers_without_endpoints_of_ours_their_health_decides(case: Case) -> None:
    members = members_now(case.alias, case.states, NOW)
    for member in members:
        before = [m for m in members if m.step <= member.step and not m.state.backend.cloud]
        lets = "down" in case.alias.cloud_when or not member.state.backend.cloud
        if not member.state.health.usable(NOW):
            assert member.why is not None
            assert KINDS[member.why.kind] == "down"
        elif lets or not before:
            assert member.why is None
        elif any(m.step < member.step for m in before):
            assert member.why is not None
            assert member.why.kind == "cloud_when"


@pytest.mark.parametrize("need", list(Need))
def test_a_made_up_request_needs_what_it_is_called_by(need: Need) -> None:
    made = request_with(need)
    likewise = {
        Need.LONG: "chat",
        Need.CALL: "required",
        Need.NAMED_CALL: "named",
        Need.THINKING_ON: "thinking on",
        Need.THINKING_OFF: "thinking off",
    }
    real = asked(likewise.get(need, need.value))
    for field in ("endpoint", "tools", "tool_choice", "json_schema", "thinking", "thinking_wish"):
        assert getattr(made, field) == getattr(real, field), field
    assert (made.media.images, made.media.audio) == (real.media.images, real.media.audio)
