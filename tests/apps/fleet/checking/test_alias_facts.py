"""What `gateway check` says of each alias is what the planner does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given

from gateway.apps.fleet.checking.alias_facts import StepBackend, alias_facts
from gateway.domain.backend import BackendState
from gateway.routing.plan import KINDS, make_plan
from gateway.routing.serving import all_ready
from tests.routing.fleets import BODIES, Case, asked, cases
from tests.routing.parts import NOW, alias, backend, fleet
from tests.routing.test_serving import MANY

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
