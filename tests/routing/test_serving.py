"""Who serves an alias: whatever is said about it is what the planner does with the requests of clients."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.models import describe
from gateway.api.ops import servable
from gateway.cli.alias_facts import StepBackend, alias_facts
from gateway.cli.startup_report import startup_report
from gateway.domain.backend import BackendState
from gateway.domain.health_state import SERVING
from gateway.routing.alias_status import view_alias
from gateway.routing.explain import explain
from gateway.routing.plan import KINDS, Plan, make_plan
from gateway.routing.serving import Need, all_ready, members_now, request_with
from tests.routing.fleets import BODIES, Case, asked, cases, turned
from tests.routing.parts import NOW, alias, backend, fleet

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


# -- one request: explain ---------------------------------------------------------------------------------------------


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


# -- by the file alone: check -----------------------------------------------------------------------------------------

SKIPPED = {
    "json_schema": "for a JSON schema",
    "images": "for images",
    "audio": "for audio",
    "thinking on": "when thinking on is demanded",
    "thinking off": "when thinking off is demanded",
    "completions": "for /completions",
    "embeddings": "for /embeddings",
}


def checked(case: Case) -> Iterator[tuple[StepBackend, dict[str, str]]]:
    """Each backend as `check` shows it, and for which needs the planner skips it, as the file describes the fleet."""
    states = all_ready(case.snapshot)
    skipped: dict[str, dict[str, str]] = {name: {} for name in states}
    for need in BODIES:
        for skip in make_plan(case.alias, states, asked(need), NOW).skipped:
            skipped[skip.state.name][need] = skip.reason
    (facts,) = alias_facts(case.snapshot)
    for member in facts.members:
        yield member, skipped[member.backend]


@MANY
@given(cases())
def test_check_says_skipped_of_what_the_planner_skips_and_of_nothing_else(case: Case) -> None:
    for member, skipped in checked(case):
        if "always: cloud_when of the alias is empty" in member.skipped:
            continue
        always = [words for words in member.skipped if words.startswith("always: ")]
        assert bool(always) == ("chat" in skipped)
        if always:
            assert "window" in always[0] or always[0] == f"always: it {skipped['chat']}"
            continue
        for need, words in SKIPPED.items():
            assert (words in member.skipped) == (need in skipped), (need, member.skipped)
        tools = [words for words in member.skipped if words.startswith("for requests with tools")]
        call = [words for words in member.skipped if words.startswith("when a tool call is required")]
        assert bool(tools) == ("tools" in skipped)
        assert bool(call) == ("required" in skipped and "tools" not in skipped)
        assert any(", unless a call is required" in words for words in tools) == (
            "tools" in skipped and "required" not in skipped
        )


@MANY
@given(cases())
def test_check_says_where_a_last_resort_helps(case: Case) -> None:
    states = all_ready(case.snapshot)
    mode = case.alias.on_unsupported
    for member, skipped in checked(case):
        needs = [need for need in ("tools", "required") if need in skipped]
        if "chat" in skipped or not needs or any(words.startswith("always") for words in member.skipped):
            continue
        helped = mode != "refuse" and all(
            member.backend
            in [c.state.name for c in make_plan(case.alias, states, asked(need), NOW, resort=mode).candidates]
            for need in needs
        )
        assert any(words.endswith("when no other can)") for words in member.skipped) == helped


@MANY
@given(cases())
def test_check_says_when_a_cloud_is_entered(case: Case) -> None:
    states = all_ready(case.snapshot)
    for member, _ in checked(case):
        cloud = states[member.backend].backend.cloud
        local_only = make_plan(case.alias, states, asked("chat"), NOW, local_only=True)
        never = "always: cloud_when of the alias is empty" in member.skipped
        assert never or ("for local_only clients and requests" in member.skipped) == any(
            skip.kind == "local_only" and skip.state.name == member.backend for skip in local_only.skipped
        )
        plan = make_plan(case.alias, states, asked("chat"), NOW)
        candidate = next((c for c in plan.candidates if c.state.name == member.backend), None)
        local_before = [c for c in plan.candidates if c.step < member.step - 1 and not c.state.backend.cloud]
        if candidate is None or not cloud or not local_before or len(plan.skipped) > 0:
            continue
        for kind, word in KINDS.items():
            plan.outcomes = {c.state.name: kind for c in plan.candidates if c is not candidate}
            assert plan.may_enter(candidate) == (word in case.alias.cloud_when)
        assert never == (not case.alias.cloud_when)
        assert never or any(words.startswith("unless everything before is ") for words in member.skipped)


@pytest.mark.parametrize("parser", [None, "hermes"])
def test_check_does_not_say_that_an_ollama_is_skipped_when_a_call_is_required(parser: str | None) -> None:
    state = backend("a", engine="ollama", tool_parser=parser)
    case = Case(_snapshot(state), fleet(state))
    ((member, skipped),) = checked(case)
    assert (member.skipped, skipped) == ((), {})


@pytest.mark.parametrize(
    ("declared", "tools", "said"),
    [
        ({"tool_parser": "none"}, "none", ("for requests with tools",)),
        ({"auto_tools": False}, "hermes without auto", ("for requests with tools, unless a call is required",)),
        ({"tool_parser": None, "auto_tools": True}, "yes", ()),
        ({"tool_parser": None}, "learned", ()),
        ({"engine": "ollama", "tool_parser": None}, "learned, required calls emulated", ()),
        ({"engine": "http", "serves": ("speech",)}, "-", ("for anything but speech",)),
        ({"context": 512}, "hermes", ("always: it has too small a window (512 tokens)",)),
    ],
)
def test_what_check_says_of_a_backend(declared: dict[str, Any], tools: str, said: tuple[str, ...]) -> None:
    state = backend("a", **declared)
    ((member, _),) = checked(Case(_snapshot(state), fleet(state)))
    assert (member.tools, member.skipped) == (tools, said)


def _snapshot(state: BackendState) -> Any:
    from gateway.config.snapshot import Snapshot

    return Snapshot({state.name: state.backend}, {"alias": alias(state.name)})


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
