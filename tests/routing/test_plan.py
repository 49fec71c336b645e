"""Who may serve a request, in which order, and when a prompt may leave the LAN: every small combination."""

from __future__ import annotations

from itertools import chain, combinations, product

import pytest

from gateway.config.snapshot import CloudWhen
from gateway.routing.plan import Plan, make_plan
from gateway.routing.request import EMBEDDINGS
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
def test_one_that_cannot_serve_is_skipped_and_told_why(condition: Condition) -> None:
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


def test_what_was_learned_counts_until_it_is_forgotten() -> None:
    state = backend("a")
    state.learn_lack("tools", NOW)
    state.learn_lack("endpoint:embeddings", NOW)
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
def test_what_an_attempt_met_counts_like_what_was_known_before(cloud_when: tuple[CloudWhen, ...]) -> None:
    for (end, word), condition, first in product(ENDS.items(), ("ok", *OUT), (True, False)):
        conditions: tuple[Condition, ...] = ("ok", condition) if first else (condition, "ok")
        plan = plan_of(conditions, cloud_when)
        for candidate in plan.candidates[:-1]:
            assert plan.may_enter(candidate), "local ones always"
            plan.met[candidate.state.name] = end
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
    plan.met["one"] = "cooldown"
    assert [plan.may_enter(c) for c in plan.candidates] == [True, True]


@pytest.mark.parametrize("condition", OUT)
def test_local_only_never_leaves_the_lan(condition: Condition) -> None:
    plan = plan_of((condition,), ALL_WORDS, local_only=True)
    assert candidates(plan) == []
    assert [s.kind for s in plan.skipped] == [condition, "local_only"]


# -- the headers that tell of it --------------------------------------------------------------------------------------


def detour(first: tuple[Condition, ...], met: dict[str, str] | None = None) -> tuple[str, str] | None:
    """What the headers say when `next` serves, behind a step of these."""
    members = [backend(f"m{number}", condition) for number, condition in enumerate(first)]
    states = fleet(*members, backend("next"))
    plan = make_plan(alias(tuple(m.name for m in members), "next"), states, request(tools=TOOLS), NOW)
    plan.met.update(met or {})
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


def test_one_unhealthy_member_makes_it_a_fallback() -> None:
    """Had it been there, it might have served."""
    assert detour(("too_long", "down")) == ("fallback", "down")
    assert detour(("incapable", "ok"), {"m1": "failed"}) == ("fallback", "failed")
