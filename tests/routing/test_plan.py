"""Who may serve a request, in which order, and when a prompt may leave the LAN: every small combination."""

from __future__ import annotations

from itertools import chain, combinations, product
from typing import Any

import pytest

from gateway.config.snapshot import CloudWhen
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import EMBEDDINGS
from gateway.domain.facts import Observation
from gateway.routing.needs import NO_ADAPTATION
from gateway.routing.plan import Plan, make_plan, with_forced_call
from gateway.routing.window import fits_window, near_limit, prompt_estimate
from tests.routing.parts import NOW, Condition, alias, backend, fleet, request

# Why a backend is out -> the word of `cloud_when` that it counts as.
WORDS: dict[Condition, CloudWhen] = {
    "down": "down",
    "warming": "down",
    "misconfigured": "down",
    "parked": "down",
    "cooldown": "busy",
    "too_long": "too_long",
    "incapable": "incapable",
}
OUT = tuple(WORDS)
USABLE: tuple[Condition, ...] = ("ok", "unknown", "suspect")
ALL_WORDS: tuple[CloudWhen, ...] = ("down", "too_long", "incapable", "busy")
CLOUD_WHENS = list(chain.from_iterable(combinations(ALL_WORDS, size) for size in range(5)))
# How an attempt on a usable backend may end -> the word it counts as; None = never a reason to leave the LAN.
ENDS: dict[str, str | None] = {
    "failed": "down",
    "misconfigured": "down",
    "cooldown": "busy",
    "too_long": "too_long",
    "incapable": "incapable",
    "unserved": "incapable",
    "disobeyed": "incapable",
    "empty": None,
}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def plan_of(conditions: tuple[Condition, ...], cloud_when: tuple[CloudWhen, ...], *, local_only: bool = False) -> Plan:
    """local0 -> local1 -> ... -> cloud, for a request with tools."""
    local = [backend(f"local{number}", condition) for number, condition in enumerate(conditions)]
    cloud = backend("cloud", cloud=True, slots=None)
    names = [state.name for state in (*local, cloud)]
    chained = alias(*names, cloud_when=cloud_when)
    return make_plan(chained, fleet(*local, cloud), request(tools=TOOLS), NOW, local_only=local_only)


def candidates(plan: Plan) -> list[str]:
    return [c.state.name for c in plan.candidates]


# -- one backend ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", USABLE)
def test_a_usable_backend_is_a_candidate(condition: Condition) -> None:
    assert candidates(plan_of((condition,), ()))[0] == "local0"


@pytest.mark.parametrize("condition", OUT)
def test_a_backend_that_cannot_serve_is_skipped_with_its_reason(condition: Condition) -> None:
    plan = plan_of((condition,), ())
    skipped = plan.skipped[0]
    assert (skipped.state.name, skipped.step, skipped.kind) == ("local0", 0, condition)
    assert skipped.reason
    assert "local0" not in candidates(plan)


def test_capability_is_only_asked_of_a_request_that_needs_it() -> None:
    state = backend("a", "incapable", vision=False)
    chained = alias("a")
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]
    assert candidates(make_plan(chained, fleet(state), request(), NOW)) == ["a"]
    assert candidates(make_plan(chained, fleet(state), request(tools=TOOLS, tool_choice="none"), NOW)) == ["a"]
    assert make_plan(chained, fleet(state), request(tools=TOOLS), NOW).skipped[0].kind == "incapable"
    assert make_plan(chained, fleet(state), request(messages=picture), NOW).skipped[0].kind == "incapable"


def test_auto_tools_off_refuses_auto_but_not_a_forced_call() -> None:
    states = fleet(backend("a", auto_tools=False))
    assert make_plan(alias("a"), states, request(tools=TOOLS), NOW).skipped[0].kind == "incapable"
    assert candidates(make_plan(alias("a"), states, request(tools=TOOLS, tool_choice="required"), NOW)) == ["a"]


def test_a_learned_fact_counts_until_it_is_forgotten() -> None:
    state = backend("a")
    state.facts.learn_lack("tools", NOW)
    state.facts.learn_lack("endpoint:embeddings", NOW)
    assert make_plan(alias("a"), fleet(state), request(tools=TOOLS), NOW).skipped[0].kind == "incapable"
    assert make_plan(alias("a"), fleet(state), request(EMBEDDINGS, input="x"), NOW).skipped[0].kind == "unserved"
    assert candidates(make_plan(alias("a"), fleet(state), request(), NOW)) == ["a"]
    assert candidates(make_plan(alias("a"), fleet(state), request(tools=TOOLS), NOW + 3601)) == ["a"]


def test_a_pause_ends() -> None:
    states = fleet(backend("a", "cooldown"))
    assert make_plan(alias("a"), states, request(), NOW + 19).skipped[0].kind == "cooldown"
    assert candidates(make_plan(alias("a"), states, request(), NOW + 20)) == ["a"]


def test_an_unknown_window_is_tried_and_not_refused() -> None:
    long = request(messages=[{"role": "user", "content": "x" * 2_000_000}])
    assert candidates(make_plan(alias("a"), fleet(backend("a", context=None)), long, NOW)) == ["a"]
    assert candidates(make_plan(alias("a", "b"), fleet(backend("a"), backend("b", context=10**6)), long, NOW)) == ["b"]


def test_pictures_are_not_taken_for_text() -> None:
    """Their base64 would be half a million tokens."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2_000_000}}
    asked = request(messages=[{"role": "user", "content": [picture]}])
    assert candidates(make_plan(alias("a"), fleet(backend("a")), asked, NOW)) == ["a"]


# -- demands, wishes, doubts ------------------------------------------------------------------------------------------

THINKER = "Qwen3-Next-80B-A3B-Thinking"


def plan(steps: tuple[str | tuple[str, ...], ...], *states: BackendState, **body: Any) -> Plan:
    return make_plan(alias(*steps), fleet(*states), request(**body), NOW)


def seen(state: BackendState, **results: Any) -> BackendState:
    state.facts.observe({check: Observation(result, "") for check, result in results.items()})
    return state


def test_a_plain_request_is_not_adapted() -> None:
    assert plan(("a",), backend("a", model=THINKER, tool_parser="none")).candidates[0].adapt is NO_ADAPTATION


def test_a_demand_goes_only_where_it_can_be_met() -> None:
    states = (
        backend("always", model=THINKER),
        backend("never", thinking="never"),
        backend("both", thinking="optional"),
    )
    steps = ("always", "never", "both")
    for said, names, told in ((True, ["always", "both"], [None, "on"]), (False, ["never", "both"], [None, "off"])):
        made = plan(steps, *states, chat_template_kwargs={"enable_thinking": said})
        assert candidates(made) == names
        assert [c.adapt.thinking for c in made.candidates] == told, "where there is nothing to switch nothing is said"
        assert [(s.kind, s.lacks) for s in made.skipped] == [("incapable", ("thinking",))]


def test_a_wish_prefers_inside_its_step_and_is_served_all_the_same() -> None:
    states = (backend("never", thinking="never"), backend("both", thinking="optional"), backend("next"))
    made = make_plan(
        alias(("never", "both"), "next", balance="round_robin"), fleet(*states), request(reasoning_effort="high"), NOW
    )
    assert candidates(made) == ["both", "never", "next"]
    assert [c.adapt.kinds for c in made.candidates] == [(), ("thinking_unavailable",), ()]
    made = plan(("never", "both"), *states[:2], reasoning_effort="high")
    assert candidates(made) == ["never", "both"], "no step is left for a wish"


def test_a_backend_that_may_not_call_tools_comes_after_all_local_ones_and_before_any_cloud() -> None:
    states = (backend("doubt", model=THINKER), backend("cloud", cloud=True), backend("b"))
    made = plan(("doubt", "cloud", "b"), *states, tools=TOOLS)
    assert candidates(made) == ["b", "doubt", "cloud"]
    assert made.detour(made.candidates[0]) == ("routed", "incapable")
    assert made.detour(made.candidates[1]) is None
    assert candidates(plan(("doubt", "cloud", "b"), *states)) == ["doubt", "cloud", "b"], "only for tools"
    assert candidates(plan(("doubt", "b"), *states, tools=TOOLS, tool_choice="required")) == ["doubt", "b"]
    assert candidates(plan(("doubt", "b"), seen(states[0], tool_auto="yes"), states[2], tools=TOOLS)) == ["doubt", "b"]
    assert candidates(plan(("doubt", "b"), seen(states[0], tool_auto="no"), states[2], tools=TOOLS)) == ["b"]


def test_a_doubtful_one_that_failed_is_a_reason_for_the_cloud() -> None:
    made = plan(("doubt", "cloud"), backend("doubt", model=THINKER), backend("cloud", cloud=True), tools=TOOLS)
    assert not made.may_enter(made.candidates[1])
    made.outcomes["doubt"] = "failed"
    assert made.may_enter(made.candidates[1])


def test_a_backend_that_said_nothing_can_be_made_to_call_once() -> None:
    asked = request(tools=TOOLS)
    made = make_plan(alias("a", "b"), fleet(backend("a"), backend("b", engine="ollama")), asked, NOW)
    a, b = made.candidates
    again = with_forced_call(a, asked, NOW)
    assert again is not None
    assert (again.adapt.force, again.adapt.kinds, again.state) == (True, ("tool_call_forced",), a.state)
    assert with_forced_call(again, asked, NOW) is None
    assert with_forced_call(b, asked, NOW) is None, "nothing there takes tool_choice"
    for other in (request(tools=TOOLS, tool_choice="none"), request(), request(tools=TOOLS, n=2)):
        assert with_forced_call(a, other, NOW) is None


def test_a_call_on_demand_that_nothing_forces_is_checked() -> None:
    states = (backend("hermes"), backend("gemma4", tool_parser="gemma4"), backend("ollama", engine="ollama"))
    made = plan(("hermes", "gemma4", "ollama"), *states, tools=TOOLS, tool_choice="required")
    assert [(c.adapt.verify, c.adapt.emulate) for c in made.candidates] == [
        (False, False),
        (True, False),
        (True, True),
    ]


# -- when only tools are missing --------------------------------------------------------------------------------------


def resorted(mode: Any, *states: BackendState, outcomes: dict[str, str] | None = None, **body: Any) -> Plan:
    body.setdefault("tools", TOOLS)
    chained = alias(*(state.name for state in states), cloud_when=ALL_WORDS)
    return make_plan(chained, fleet(*states), request(**body), NOW, resort=mode, outcomes=outcomes)


def lacking_tools() -> tuple[BackendState, ...]:
    learned, observed = backend("learned", tool_parser=None), seen(backend("observed"), tool_auto="no")
    learned.facts.learn_lack("tools", NOW)
    return backend("declared", "incapable"), backend("no_auto", auto_tools=False), learned, observed


def test_mending_asks_every_vllm_without_a_working_parser() -> None:
    other = backend("other", "incapable", engine="openai")
    made = resorted("mend", *lacking_tools(), other, backend("down", "down"))
    assert candidates(made) == ["declared", "no_auto", "learned", "observed"]
    assert {(c.adapt.mode, c.adapt.kinds) for c in made.candidates} == {("mend", ("tools_as_text",))}
    assert [(s.state.name, s.kind) for s in made.skipped] == [("other", "incapable"), ("down", "down")]


def test_stripping_asks_any_engine_and_never_a_demand() -> None:
    other = backend("other", "incapable", engine="openai")
    assert candidates(resorted("strip", *lacking_tools(), other))[-1] == "other"
    assert candidates(resorted("strip", *lacking_tools(), other, tool_choice="required")) == []


@pytest.mark.parametrize("mode", ["mend", "strip"])
def test_only_a_lack_of_tools_is_got_over(mode: Any) -> None:
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    blind = backend("blind", "incapable", vision=False)
    free = seen(backend("free", "incapable"), json_schema="no")
    assert candidates(resorted(mode, blind, messages=picture)) == []
    assert candidates(resorted(mode, free, response_format=schema)) == []
    assert candidates(resorted(mode, backend("never", "incapable", thinking="never"), think=True)) == []
    small = resorted(
        mode, backend("small", "incapable", context=2000), messages=[{"role": "user", "content": "x" * 99999}]
    )
    assert [s.kind for s in small.skipped] == ["too_long"]


def test_a_backend_that_has_had_its_turn_is_not_asked_again() -> None:
    states = (backend("tried"), backend("a", "incapable"), backend("cloud", cloud=True))
    made = resorted("mend", *states, outcomes={"tried": "failed"})
    assert candidates(made) == ["a"]
    assert [(s.state.name, s.kind) for s in made.skipped] == [("tried", "failed"), ("cloud", "local_only")]
    assert made.outcomes == {"tried": "failed"}


# -- windows, counted -------------------------------------------------------------------------------------------------


def test_a_prompt_is_counted_only_where_the_guess_leaves_it_open() -> None:
    def near(size: int, **keys: Any) -> bool:
        return near_limit(backend("a", context=10_000, **keys), request(messages=[user("x" * size)]), 1024, NOW)

    assert [near(5_000), near(30_000), near(60_000)] == [False, True, False]
    assert not near(30_000, engine="ollama"), "only vLLM counts"
    assert not near_limit(backend("a", context=None), request(messages=[user("x" * 30_000)]), 1024, NOW)
    picture = {"type": "image_url", "image_url": {"url": "data:,x"}}
    pictured = request(messages=[user("x" * 30_000), user([picture])])
    assert not near_limit(backend("a", context=10_000), pictured, 1024, NOW)


def test_a_counted_prompt_counts_more_than_the_guess() -> None:
    states = (backend("a", context=10_000), backend("b", context=10_000))
    asked = request(messages=[user("x" * 30_000)])
    for counted, fit in ((8_976, True), (8_977, False)):
        asked.exact["a"] = counted
        assert fits_window(states[0], asked, 1024, NOW) is fit
        assert candidates(make_plan(alias("a", "b"), fleet(*states), asked, NOW)) == (["a", "b"] if fit else ["b"])
        assert prompt_estimate(states[0], asked) == (counted, counted, counted)
        assert not near_limit(states[0], asked, 1024, NOW), "it is known now"
    assert near_limit(states[1], asked, 1024, NOW), "another tokenizer may count otherwise"


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


# -- a busy step ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inflight", [4, 5, 400])
def test_a_busy_step_is_not_left(inflight: int) -> None:
    states = fleet(backend("full", inflight=inflight), backend("free"), backend("cloud", cloud=True))
    plan = make_plan(alias("full", "free", "cloud", cloud_when=ALL_WORDS), states, request(), NOW)
    assert candidates(plan)[0] == "full"
    assert plan.skipped == []


def test_inside_a_step_the_free_one_is_first() -> None:
    states = fleet(backend("full", inflight=4), backend("free", inflight=3), backend("next"))
    plan = make_plan(alias(("full", "free"), "next"), states, request(), NOW)
    assert candidates(plan) == ["free", "full", "next"]


# -- leaving the LAN --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cloud_when", CLOUD_WHENS, ids=lambda words: "+".join(words) or "never")
def test_the_cloud_is_entered_only_when_every_local_reason_is_allowed(cloud_when: tuple[CloudWhen, ...]) -> None:
    for conditions in chain(product(OUT, repeat=1), product(OUT, repeat=2)):
        plan = plan_of(conditions, cloud_when)
        assert candidates(plan) == ["cloud"]
        allowed = all(WORDS[c] in cloud_when for c in conditions)
        assert plan.may_enter(plan.candidates[0]) is allowed, conditions


@pytest.mark.parametrize("cloud_when", CLOUD_WHENS, ids=lambda words: "+".join(words) or "never")
def test_an_obstacle_that_an_attempt_met_counts_like_one_known_before(cloud_when: tuple[CloudWhen, ...]) -> None:
    for (end, word), condition, first in product(ENDS.items(), ("ok", *OUT), (True, False)):
        conditions: tuple[Condition, ...] = ("ok", condition) if first else (condition, "ok")
        plan = plan_of(conditions, cloud_when)
        for candidate in plan.candidates[:-1]:
            assert plan.may_enter(candidate), "local ones always"
            plan.outcomes[candidate.state.name] = end
        reasons = [word, *([] if condition == "ok" else [WORDS[condition]])]
        allowed = all(reason in cloud_when for reason in reasons)
        assert plan.may_enter(plan.candidates[-1]) is allowed, (conditions, end)


def test_a_local_step_behind_the_cloud_has_no_say() -> None:
    states = fleet(backend("a", "down"), backend("cloud", cloud=True), backend("b", "incapable"))
    plan = make_plan(alias("a", "cloud", "b"), states, request(tools=TOOLS), NOW)
    assert plan.may_enter(plan.candidates[0])


def test_an_alias_of_the_cloud_alone_enters_it_without_a_reason() -> None:
    states = fleet(backend("cloud", cloud=True), backend("second", cloud=True))
    plan = make_plan(alias("cloud", "second", cloud_when=()), states, request(), NOW)
    assert [plan.may_enter(c) for c in plan.candidates] == [True, True]


def test_a_cloud_that_failed_is_no_reason_against_the_next_cloud() -> None:
    states = fleet(backend("a", "down"), backend("one", cloud=True), backend("two", cloud=True))
    plan = make_plan(alias("a", "one", "two"), states, request(), NOW)
    plan.outcomes["one"] = "cooldown"
    assert [plan.may_enter(c) for c in plan.candidates] == [True, True]


@pytest.mark.parametrize("condition", OUT)
def test_local_only_never_leaves_the_lan(condition: Condition) -> None:
    plan = plan_of((condition,), ALL_WORDS, local_only=True)
    assert candidates(plan) == []
    assert [s.kind for s in plan.skipped] == [condition, "local_only"]


# -- the headers that tell of it --------------------------------------------------------------------------------------


def detour(first: tuple[Condition, ...], outcomes: dict[str, str] | None = None) -> tuple[str, str] | None:
    """What the headers say when `next` serves, behind a step of these."""
    members = [backend(f"m{number}", condition) for number, condition in enumerate(first)]
    states = fleet(*members, backend("next"))
    plan = make_plan(alias(tuple(m.name for m in members), "next"), states, request(tools=TOOLS), NOW)
    plan.outcomes.update(outcomes or {})
    return plan.detour(plan.candidates[-1])


def test_the_first_step_is_no_detour() -> None:
    plan = plan_of(("ok",), ())
    assert plan.detour(plan.candidates[0]) is None


@pytest.mark.parametrize("condition", ["down", "warming", "misconfigured", "parked"])
def test_an_unhealthy_first_step_is_a_fallback(condition: Condition) -> None:
    assert detour((condition,)) == ("fallback", condition)


@pytest.mark.parametrize(
    ("condition", "word"), [("too_long", "too_long"), ("incapable", "incapable"), ("cooldown", "busy")]
)
def test_a_request_that_the_first_step_cannot_take_is_routed(condition: Condition, word: str) -> None:
    assert detour((condition,)) == ("routed", word)


def test_an_attempt_that_just_failed_is_a_fallback() -> None:
    assert detour(("ok",), {"m0": "failed"}) == ("fallback", "failed")
    assert detour(("ok",), {"m0": "too_long"}) == ("routed", "too_long")


def test_an_unhealthy_member_of_a_step_makes_the_detour_a_fallback() -> None:
    """Had it been there, it might have served."""
    assert detour(("too_long", "down")) == ("fallback", "down")
    assert detour(("incapable", "ok"), {"m1": "failed"}) == ("fallback", "failed")
