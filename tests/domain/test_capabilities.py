"""What a backend can do follows from what is declared, what was seen, and what its engine and model imply."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pytest

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.capabilities import Capabilities, at_least
from gateway.domain.drift import drift
from gateway.domain.facts import LEARNED_FOR, Observation
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State

NOW = 1000.0
Result = Literal["yes", "mended", "no", "untested"]
RESULTS: tuple[Result, ...] = ("yes", "mended", "no", "untested")


def backend_state(*, version: str | None = "0.32.0", **keys: Any) -> BackendState:
    backend = Backend("b", url="http://127.0.0.1:1", **keys)
    state = BackendState(backend, None, Health("b", backend.health, state=State.READY))
    state.saw_version(version)
    return state


def saw(**results: Result) -> dict[str, Observation]:
    return {check: Observation(result, f"what {check} saw") for check, result in results.items()}


def able(observed: dict[str, Observation] | None = None, learned: tuple[str, ...] = (), **keys: Any) -> Capabilities:
    state = backend_state(**keys)
    state.facts.observe(observed or {})
    for lack in learned:
        state.facts.learn_lack(lack, NOW)
    return state.capabilities(NOW)


# -- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", RESULTS)
@pytest.mark.parametrize(
    ("declared", "can"),
    [
        ({"tool_parser": "hermes", "auto_tools": True}, True),
        ({"tool_parser": "hermes", "auto_tools": False}, False),
        ({"tool_parser": "none", "auto_tools": False}, False),
        ({}, None),
    ],
)
def test_tools_are_as_declared_unless_what_was_seen_is_worse(
    declared: dict[str, Any], can: bool | None, seen: Result
) -> None:
    tools = able(saw(tool_auto=seen), **declared).tools
    if can is None:  # nothing is declared: what was seen is all there is
        assert tools is {"yes": True, "mended": True, "no": False, "untested": None}[seen]
    else:
        assert tools is (can and seen != "no")


def test_a_refusal_that_a_request_met_counts_against_everything() -> None:
    for lack in ("tools", "tool_parser"):
        assert able(saw(tool_auto="yes"), (lack,), tool_parser="hermes").tools is False


def test_what_vllm_says_to_auto_does_not_mean_that_no_call_can_be_forced() -> None:
    """Only --enable-auto-tool-choice may be missing."""
    assert able(learned=("tools",), tool_parser="hermes").required == "enforced"
    assert able(learned=("tool_parser",), tool_parser="hermes").required == "no"


@pytest.mark.parametrize(
    ("parser", "way"),
    [
        *((name, "enforced") for name in ("hermes", "qwen3_coder", "deepseek_v4", "openai", "pythonic", "seed_oss")),
        *((name, "tried") for name in ("gemma4", "poolside_v1", "some_plugin", None)),
        ("none", "no"),
    ],
)
def test_a_call_on_demand_is_as_good_as_the_parser(parser: str | None, way: str) -> None:
    can = able(tool_parser=parser)
    assert (can.required, can.named) == (way, way)


@pytest.mark.parametrize(("version", "way"), [("0.11.2", "enforced"), ("0.12.0", "no"), ("0.32.1", "no"), (None, "no")])
def test_an_old_vllm_needs_no_parser_for_it(version: str | None, way: str) -> None:
    assert able(tool_parser="none", version=version).required == way
    assert able(tool_parser="none", version=version).tools is False


@pytest.mark.parametrize(("engine", "way"), [("openai", "tried"), ("litellm", "tried"), ("ollama", "emulated")])
def test_other_engines_are_asked_and_checked_or_emulated(engine: Any, way: str) -> None:
    can = able(engine=engine)
    assert (can.required, can.named) == (way, way)


def test_what_was_seen_of_a_named_call_says_nothing_of_a_required_one() -> None:
    can = able(saw(tool_named="no", tool_required="yes"), tool_parser="hermes")
    assert (can.required, can.named) == ("enforced", "no")


def test_one_disobedience_is_no_rule_where_nothing_is_enforced() -> None:
    assert able(saw(tool_required="no"), tool_parser="gemma4").required == "tried"


# -- thinking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", ["optional", "always", "never", None])
def test_thinking_is_as_declared_else_by_family(declared: Any) -> None:
    assert able(thinking=declared, model="Qwen3.6-35B").thinking == (declared or "optional")
    assert able(thinking=declared, model="m").thinking == declared


@pytest.mark.parametrize(
    ("declared", "on", "off"), list(product(["optional", "always", "never", None], RESULTS, RESULTS))
)
def test_thinking_that_cannot_be_switched_is_not_promised(declared: Any, on: Result, off: Result) -> None:
    can = able(saw(thinking_on=on, thinking_off=off), thinking=declared)
    assert (can.thinks is False) == (declared == "never" or on == "no")
    assert (can.silent is False) == (declared == "always" or off == "no")
    if can.thinking == "never":
        assert can.thinks is False
    if can.thinking == "always":
        assert can.silent is False
    if can.thinking == "optional":
        assert can.thinks
        assert can.silent


def test_the_switch_is_the_declared_one_else_the_familys() -> None:
    assert able(model="DeepSeek-V4-Flash").switch == "thinking"
    assert able(model="DeepSeek-V4-Flash", thinking_switch="other").switch == "other"
    assert able(model="m").switch is None
    assert able(model="deepseek-v4-flash", engine="openai").switch is None, "only vLLM takes it unasked"


@pytest.mark.parametrize("seen", RESULTS)
def test_a_model_that_always_thinks_has_to_show_that_it_calls_tools(seen: Result) -> None:
    can = able(saw(tool_auto=seen), model="Qwen3-Next-80B-A3B-Thinking", tool_parser="hermes")
    assert can.tools is (seen != "no")
    assert can.doubtful is (seen == "untested")


def test_a_cloud_is_never_checked_and_so_never_in_doubt() -> None:
    assert not able(model="kimi-k2-thinking", engine="openai", cloud=True).doubtful


# -- the rest ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "can"), [("vllm", True), ("ollama", True), ("openai", None), ("litellm", None)])
def test_a_schema_is_kept_to_by_the_engines_that_enforce_it(engine: Any, can: bool | None) -> None:
    assert able(engine=engine).json_schema is can
    assert able(saw(json_schema="no"), engine=engine).json_schema is False
    assert able(saw(json_schema="yes"), engine=engine).json_schema is True


@pytest.mark.parametrize("what", ["images", "audio", "pdf"])
@pytest.mark.parametrize("declared", [True, False, None])
def test_media_are_as_declared_unless_refused(what: str, declared: bool | None) -> None:
    keys: dict[str, Any] = {{"images": "vision"}.get(what, what): declared, "engine": "openai"}
    assert getattr(able(**keys), what) is declared
    assert getattr(able(learned=(what,), **keys), what) is False


@pytest.mark.parametrize(
    ("engine", "pdf", "continues"), [("vllm", False, True), ("llamacpp", False, False), ("openai", None, None)]
)
def test_inputs_that_a_server_takes_and_continues_follow_from_its_kind(engine: str, pdf: Any, continues: Any) -> None:
    found = able(engine=engine)
    assert (found.pdf, found.continues) == (pdf, continues)
    assert able(engine=engine, pdf=True).pdf is True


@pytest.mark.parametrize(
    ("keys", "observed", "field", "source"),
    [
        ({"tool_parser": "hermes"}, {}, "tools", "declared"),
        ({}, saw(tool_auto="yes"), "tools", "observed"),
        ({}, {}, "tools", "unknown"),
        ({"model": "Qwen3.6"}, {}, "thinking", "family"),
        ({"model": "Qwen3.6"}, {}, "switch", "family"),
        ({"model": "Qwen3.6"}, saw(thinking_off="no"), "thinking", "observed"),
        ({}, {}, "json_schema", "engine"),
        ({"engine": "ollama"}, {}, "required", "engine"),
    ],
)
def test_the_source_of_each_capability_is_told(keys: Any, observed: Any, field: str, source: str) -> None:
    assert able(observed, **keys).sources[field] == source


def test_versions_are_compared_as_numbers() -> None:
    assert [at_least(v, 0, 12) for v in ("0.9.1", "0.12.0", "0.32.0rc1", "1.0", "dev", None)] == [
        *(False, True, True, True),
        *(None, None),
    ]


# -- worked out once --------------------------------------------------------------------------------------------------


def test_capabilities_are_worked_out_once() -> None:
    state = backend_state(tool_parser="hermes")
    state.facts.learn_lack("images", NOW)
    assert state.capabilities(NOW) is state.capabilities(NOW + 1)


def test_capabilities_are_made_anew_with_whatever_they_follow_from() -> None:
    state = backend_state()
    before = state.capabilities(NOW)
    state.saw_model("Qwen3.6-35B", None)
    assert state.capabilities(NOW).thinking == "optional" != before.thinking
    state.define(replace(state.backend, tool_parser="none"))
    assert state.capabilities(NOW).required == "no"
    state.saw_version("0.11.0")
    assert state.capabilities(NOW).required == "enforced"
    state.facts.learn_lack("images", NOW)
    assert state.capabilities(NOW).images is False
    state.facts.observe(saw(json_schema="no"))
    assert state.capabilities(NOW).json_schema is False
    state.forget()
    assert (state.capabilities(NOW).images, state.capabilities(NOW).json_schema) == (None, True)


def test_what_was_learned_ends_by_itself_and_what_was_observed_does_not() -> None:
    state = backend_state()
    state.facts.learn_lack("tools", NOW)
    state.facts.observe(saw(json_schema="no"))
    assert state.capabilities(NOW + LEARNED_FOR - 1).tools is False
    later = state.capabilities(NOW + LEARNED_FOR)
    assert (later.tools, later.json_schema) == (None, False)


# -- forgetting -------------------------------------------------------------------------------------------------------


def known(state: BackendState) -> bool:
    return bool(state.facts.lacks) or bool(state.facts.observed)


def taught() -> BackendState:
    state = backend_state()
    state.health.ever_ready = True
    state.saw_start(100.0)
    state.facts.learn_lack("tools", NOW)
    state.facts.observe(saw(tool_auto="no"))
    return state


def test_facts_are_dropped_with_another_version_or_start() -> None:
    state = taught()
    state.saw_version("0.32.0")
    state.saw_start(100.0)
    state.saw_start(None)
    assert known(state)
    state.saw_start(200.0)
    assert not known(state)
    state = taught()
    state.saw_version("0.33.0")
    assert not known(state)


def test_a_port_that_refuses_even_once_means_that_it_is_started_anew() -> None:
    state = taught()
    state.evidence.dead("no answer to /health within 3 s")
    assert known(state), "slow is not gone"
    state.evidence.dead("connection refused", refused=True)
    assert state.health.state is State.SUSPECT
    assert not known(state)


def test_facts_are_dropped_when_it_goes_down() -> None:
    state = taught()
    for _ in range(state.health.settings.fail_after):
        state.evidence.failed("answered 500")
    assert state.health.state is State.DOWN
    assert not known(state)


# -- drift ------------------------------------------------------------------------------------------------------------


def drifted(observed: dict[str, Observation], **keys: Any) -> list[str]:
    state = backend_state(**keys)
    state.facts.observe(observed)
    return drift(state, NOW)


def test_nothing_differs_where_nothing_was_seen_or_declared() -> None:
    assert drifted({}, tool_parser="hermes", thinking="optional", context=1000) == []
    assert drifted(saw(tool_auto="no", thinking_on="no")) == []
    assert drifted(saw(tool_auto="mended", tool_required="yes", thinking_off="yes"), tool_parser="hermes") == []


@pytest.mark.parametrize("check", ["tool_auto", "tool_required", "tool_named"])
def test_a_declared_parser_that_does_not_work_is_drift(check: str) -> None:
    assert drifted({check: Observation("no", f"what {check} saw")}, tool_parser="hermes") == [
        f"tool_parser: hermes is declared, but {check}: what {check} saw"
    ]


def test_calls_without_a_declared_parser_are_drift_and_not_used() -> None:
    assert len(drifted(saw(tool_auto="yes"), tool_parser="none")) == 1
    assert able(saw(tool_auto="yes"), tool_parser="none").tools is False


@pytest.mark.parametrize(
    ("declared", "check", "result"),
    [
        ("optional", "thinking_on", "no"),
        ("optional", "thinking_off", "no"),
        ("always", "thinking_on", "no"),
        ("always", "thinking_off", "yes"),
        ("never", "thinking_on", "yes"),
        ("never", "thinking_off", "no"),
    ],
)
def test_thinking_that_is_not_as_declared_is_drift(declared: Any, check: Any, result: Result) -> None:
    found = drifted({check: Observation(result, "")}, thinking=declared)
    assert len(found) == 1
    assert found[0].startswith(f"thinking: {declared} is declared")


def test_a_window_that_is_not_as_declared_is_drift() -> None:
    state = backend_state(context=131072)
    state.saw_model(None, 65536)
    assert drift(state, NOW) == ["context: 131072 is declared, it serves 65536"]


def test_a_refusal_of_what_is_declared_is_drift() -> None:
    state = backend_state(tool_parser="hermes", vision=True, pdf=True)
    state.facts.learn_lack("tools", NOW)
    state.facts.learn_lack("images", NOW)
    state.facts.learn_lack("pdf", NOW)
    assert len(drift(state, NOW)) == 3
    assert "pdf: true is declared, but it refused a PDF" in drift(state, NOW)
