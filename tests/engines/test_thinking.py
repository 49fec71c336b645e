"""Thinking on or off reaches each backend in the words that it understands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.snapshot import Alias, Backend
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from gateway.domain.request import parse
from gateway.engines.base import RequestFields
from gateway.engines.ollama.request import read_think
from gateway.engines.outgoing import outgoing_fields
from gateway.routing.plan import make_plan

ASK: dict[str, Any] = {"model": "alias", "messages": [{"role": "user", "content": "hi"}]}
QWEN, DEEPSEEK, GEMMA = "Qwen3.6-35B-A3B", "DeepSeek-V4-Flash", "gemma-4-31B-it"
# The ways in which clients demand it.
DEMANDS: list[dict[bool, dict[str, Any]]] = [
    {on: {"chat_template_kwargs": {"enable_thinking": on}} for on in (True, False)},
    {on: {"chat_template_kwargs": {"thinking": on}} for on in (True, False)},
    {on: {"think": on} for on in (True, False)},
    {True: {"thinking": {"type": "enabled", "budget_tokens": 2048}}, False: {"thinking": {"type": "disabled"}}},
]


def backend_state(model: str | None = QWEN, **keys: Any) -> BackendState:
    backend = Backend("b", url="http://127.0.0.1:1", model=model, **keys)
    return BackendState(backend, None, Health("b", backend.health, state=State.READY))


def up(said: dict[str, Any], state: BackendState | None = None, **keys: Any) -> tuple[dict[str, Any], list[str]]:
    """(what of the body goes up beside model and messages, what was adapted), as a plan sends it."""
    state = state or backend_state()
    request = parse(CHAT, json.dumps({**ASK, **said}).encode())
    alias = Alias("alias", (("b",),), **keys)
    [candidate] = make_plan(alias, {"b": state}, request, 0.0).candidates
    fields, adapted = outgoing_fields(request, alias, state, candidate.adapt)
    return {name: json.loads(bytes(value)) for name, value in fields.items() if name not in ASK}, adapted


def kwargs(**switches: Any) -> dict[str, Any]:
    return {"chat_template_kwargs": switches}


# -- vLLM -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("demand", DEMANDS)
@pytest.mark.parametrize(
    ("model", "switch"),
    [(QWEN, "enable_thinking"), (GEMMA, "enable_thinking"), (None, "enable_thinking"), (DEEPSEEK, "thinking")],
)
def test_every_way_to_demand_it_becomes_the_models_own_switch(
    model: str | None, switch: str, demand: dict[bool, dict[str, Any]], on: bool
) -> None:
    assert up(demand[on], backend_state(model)) == (kwargs(**{switch: on}), [])


@pytest.mark.parametrize("on", [True, False])
def test_a_declared_switch_wins_over_the_familys(on: bool) -> None:
    assert up({"think": on}, backend_state(thinking_switch="deep"))[0] == kwargs(deep=on)


def test_what_is_said_in_the_backends_own_words_keeps_its_bytes() -> None:
    raw = b'{"model":"alias","messages":[],"chat_template_kwargs":{ "x":1e0,  "enable_thinking" : false}}'
    request, state, alias = parse(CHAT, raw), backend_state(), Alias("alias", (("b",),))
    [candidate] = make_plan(alias, {"b": state}, request, 0.0).candidates
    assert candidate.adapt.thinking == "off"
    fields, _ = outgoing_fields(request, alias, state, candidate.adapt)
    assert bytes(fields["chat_template_kwargs"]) == b'{ "x":1e0,  "enable_thinking" : false}'


def test_other_keys_stay_and_the_foreign_switch_goes() -> None:
    said = kwargs(enable_thinking=False, add_vision_id=True)
    assert up(said, backend_state(DEEPSEEK))[0] == kwargs(add_vision_id=True, thinking=False)


def test_a_number_is_not_the_switch() -> None:
    sent, _ = up(kwargs(enable_thinking=0), thinking="off")
    assert sent["chat_template_kwargs"]["enable_thinking"] is False


def test_a_budget_is_switched_by_numbers() -> None:
    for on, budget in ((True, -1), (False, 0)):
        assert up({"think": on}, backend_state("Seed-OSS-36B-Instruct"))[0] == kwargs(thinking_budget=budget)


@pytest.mark.parametrize("forced", ["on", "off"])
@pytest.mark.parametrize("said", [{}, *(demand[on] for demand in DEMANDS for on in (True, False))])
def test_the_alias_setting_wins_over_whatever_the_client_says(said: dict[str, Any], forced: Any) -> None:
    assert up(said, thinking=forced)[0] == kwargs(enable_thinking=forced == "on")


@pytest.mark.parametrize("forced", ["on", "off"])
def test_an_effort_stays_beside_the_switch_which_counts_more_there(forced: Any) -> None:
    sent, _ = up({"reasoning_effort": "high"}, thinking=forced)
    assert sent == {"reasoning_effort": "high", **kwargs(enable_thinking=forced == "on")}


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none"}),
        ({"think": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "adaptive"}}, {}),
    ],
)
def test_a_wish_goes_up_in_the_field_that_vllm_reads(said: dict[str, Any], sent: dict[str, Any]) -> None:
    assert up(said) == (sent, [])


def test_where_there_is_nothing_to_switch_nothing_is_said() -> None:
    assert up({"think": True}, backend_state("Qwen3-Next-80B-A3B-Thinking"))[0] == {}
    assert up({}, backend_state("Llama-3.3-70B"), thinking="off")[0] == {}
    assert up(kwargs(enable_thinking=False), backend_state("Llama-3.3-70B"))[0] == kwargs(enable_thinking=False)


def test_a_wish_that_cannot_be_fulfilled_is_told() -> None:
    assert up({"reasoning_effort": "high"}, backend_state("Llama-3.3-70B"))[1] == ["thinking_unavailable"]
    assert up({"reasoning_effort": "none"}, backend_state("Qwen3-Next-80B-A3B-Thinking"))[1] == ["thinking_unavailable"]
    assert up({"reasoning_effort": "none"}, backend_state("Llama-3.3-70B"))[1] == []


def test_the_alias_params_give_way() -> None:
    params = kwargs(enable_thinking=False, other=1)
    assert up({"think": True}, params=params)[0] == kwargs(enable_thinking=True, other=1)
    assert up({}, params=params)[0] == params


switches = st.dictionaries(
    st.sampled_from(["enable_thinking", "thinking", "a", "b"]), st.booleans() | st.none(), max_size=4
)


@settings(deadline=None)
@given(
    said=switches,
    think=st.booleans() | st.none(),
    model=st.sampled_from([QWEN, DEEPSEEK, None]),
    forced=st.sampled_from(["on", "off"]),
)
def test_after_all_the_one_switch_says_what_is_wanted_and_nothing_else_is_lost(
    said: dict[str, Any], think: bool | None, model: str | None, forced: Any
) -> None:
    sent, _ = up({"chat_template_kwargs": said, "think": think}, backend_state(model), thinking=forced)
    switch = "thinking" if model == DEEPSEEK else "enable_thinking"
    assert sent["chat_template_kwargs"][switch] is (forced == "on")
    rest = {name: value for name, value in said.items() if name in ("a", "b")}
    assert {name: value for name, value in sent["chat_template_kwargs"].items() if name in ("a", "b")} == rest


# -- Ollama -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("demand", [*DEMANDS, {True: {"reasoning_effort": "low"}, False: {"reasoning_effort": "high"}}])
@pytest.mark.parametrize("forced", [None, "on", "off"])
def test_ollama_reads_what_is_meant(demand: dict[bool, dict[str, Any]], on: bool, forced: Any) -> None:
    state = backend_state("qwen3:8b", engine="ollama")
    said = demand[on]
    request = parse(CHAT, json.dumps({**ASK, **said}).encode())
    alias = Alias("alias", (("b",),), thinking=forced)
    [candidate] = make_plan(alias, {"b": state}, request, 0.0).candidates
    fields, _ = outgoing_fields(request, alias, state, candidate.adapt)
    think, wished = read_think(RequestFields(fields))
    if "reasoning_effort" in said and forced is None:
        assert wished
    else:
        assert (think, wished) == (on if forced is None else forced == "on", False)


@pytest.mark.parametrize("said", [{"reasoning_effort": "high"}, {"think": "high"}])
def test_a_wish_that_its_model_would_refuse_is_not_sent(said: dict[str, Any]) -> None:
    state = backend_state("llama3.1:8b", engine="ollama")
    request = parse(CHAT, json.dumps({**ASK, **said}).encode())
    alias = Alias("alias", (("b",),))
    [candidate] = make_plan(alias, {"b": state}, request, 0.0).candidates
    fields, adapted = outgoing_fields(request, alias, state, candidate.adapt)
    assert read_think(RequestFields(fields))[0] is False
    assert adapted == ["thinking_unavailable"]


def test_a_level_is_on() -> None:
    state = backend_state("qwen3:8b", engine="ollama")
    assert up({"think": "high"}, state, thinking="on")[0] == {"think": "high"}
    assert up({"think": "high"}, state, thinking="off")[0] == {"think": False}


# -- other servers ----------------------------------------------------------------------------------------------------


def other(**keys: Any) -> BackendState:
    return backend_state("some-model", engine="openai", **keys)


@pytest.mark.parametrize("cloud", [True, False])
@pytest.mark.parametrize("demand", DEMANDS)
def test_an_undeclared_server_gets_what_the_client_sent(demand: dict[bool, dict[str, Any]], cloud: bool) -> None:
    for said in demand.values():
        assert up(said, other(cloud=cloud)) == (said, [])


def test_a_forced_setting_is_an_effort_for_a_cloud_and_told_where_it_cannot_be_said() -> None:
    assert up({}, other(cloud=True), thinking="on") == ({"reasoning_effort": "medium"}, [])
    assert up({}, other(cloud=True), thinking="off") == ({"reasoning_effort": "none"}, [])
    assert up({"reasoning_effort": "high"}, other(cloud=True), thinking="on")[0] == {"reasoning_effort": "high"}
    assert up({"reasoning_effort": "high"}, other(cloud=True), thinking="off")[0] == {"reasoning_effort": "none"}
    assert up({}, other(), thinking="off") == ({}, ["thinking_unavailable"])


def test_a_declared_switch_is_used_there_too() -> None:
    assert up({"think": False}, other(thinking_switch="thinking"))[0] == {"think": False, **kwargs(thinking=False)}
    effort = other(thinking_switch="reasoning_effort")
    assert up(kwargs(enable_thinking=True), effort)[0] == {**kwargs(enable_thinking=True), "reasoning_effort": "medium"}
    assert up({}, effort, thinking="off")[0] == {"reasoning_effort": "none"}
    assert up({"reasoning_effort": "low"}, effort, thinking="on")[0] == {"reasoning_effort": "low"}


@pytest.mark.parametrize("on", [True, False])
def test_litellm_takes_an_effort_or_anthropics_own_words(on: bool) -> None:
    state = backend_state("anthropic/claude-sonnet-5", engine="litellm", cloud=True)
    effort = "medium" if on else "none"
    assert up(kwargs(enable_thinking=on), state)[0]["reasoning_effort"] == effort
    assert up(DEMANDS[3][on], state)[0] == DEMANDS[3][on]
    assert up(DEMANDS[3][on], state, thinking="off" if on else "on")[0] == {
        "reasoning_effort": "none" if on else "medium"
    }
