"""A call that has to be made, on Ollama: what is asked for, as structured output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.domain.engine_traits import TRAITS
from gateway.engines.base import InexpressibleRequest
from gateway.engines.registry import ENGINES
from simulator import SimOllama
from simulator.ollama_request import check_format
from tests.engines.ollama_lines import ollama
from tests.engines.ollama_tools import (
    CITY,
    HELLO,
    MEASURE,
    PING,
    WEATHER,
    asked,
    both,
    chosen_of,
    named,
    required_call,
    tool,
)
from tests.engines.scripted import call_of
from tests.support import running_gateway

# -- what is asked ----------------------------------------------------------------------------------------------------


def test_a_named_choice_is_the_schema_of_that_call() -> None:
    form = required_call([WEATHER, PING], named("get_weather")).format
    assert form == {
        "type": "object",
        "properties": {"name": {"const": "get_weather"}, "parameters": CITY},
        "required": ["name", "parameters"],
    }


def test_the_name_may_stand_without_its_function_as_in_the_responses_api() -> None:
    flat = {"type": "function", "name": "ping"}
    assert required_call([WEATHER, PING], flat).format == required_call([WEATHER, PING], named("ping")).format


def test_required_is_one_of_the_offered_calls_with_references_at_the_root() -> None:
    form = required_call([WEATHER, MEASURE, PING]).format
    check_format(form)
    fits = Draft202012Validator(form).is_valid
    assert fits({"name": "get_weather", "parameters": {"city": "Rome"}})
    assert fits({"name": "measure", "parameters": {"unit": "ft"}})
    assert fits({"name": "ping", "parameters": {}})
    assert not fits({"name": "measure", "parameters": {"unit": "mile"}})
    assert not fits({"name": "get_weather", "parameters": {"unit": "ft"}})
    assert not fits({"name": "other", "parameters": {}})


def test_the_name_is_written_first_even_where_keys_are_sorted() -> None:
    properties = required_call([WEATHER]).format["properties"]
    assert sorted(properties) == list(properties) == ["name", "parameters"]


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_takes_an_empty_object(parameters: Any) -> None:
    assert required_call([tool("ping", parameters)]).format["properties"]["parameters"] == {
        "type": "object",
        "properties": {},
    }


def test_the_model_is_told_of_the_tools_in_the_system_message_and_not_by_tools() -> None:
    call = asked()
    system, user = call.body["messages"]
    assert user == HELLO[0]
    assert system["role"] == "system"
    assert '"description":"The weather of a city"' in system["content"]
    assert "tools" not in call.body
    assert call.text_bytes == len("hello") + len(system["content"])


def test_a_system_message_of_the_client_stays_first_and_whole() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    system, user = asked(messages=messages).body["messages"]
    assert system["content"].startswith("Be brief.\n\n")
    assert "get_weather" in system["content"]
    assert user == HELLO[0]


def test_a_named_choice_tells_of_no_other_tool() -> None:
    text = asked(tools=[WEATHER, MEASURE], tool_choice=named("measure")).body["messages"][0]["content"]
    assert "measure" in text
    assert "get_weather" not in text


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_a_free_choice_demands_nothing(choice: Any) -> None:
    call = asked(tool_choice=choice)
    assert call.required_call is None
    assert "format" not in call.body
    assert call.body["messages"] == HELLO


def test_a_call_goes_before_a_format_of_the_answer() -> None:
    assert asked(response_format={"type": "json_object"}).body["format"] == required_call([WEATHER]).format


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({}, False),
        ({"thinking": "optional"}, False),
        ({"thinking": "always"}, None),
        ({"model": "gpt-oss:20b"}, None),
        ({"think": True}, True),
        ({"reasoning_effort": "high"}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
    ],
)
def test_thoughts_are_left_out_unless_the_client_wants_them_or_the_model_cannot(
    fields: dict[str, Any], think: bool | None
) -> None:
    assert asked(**fields).body.get("think") == think


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": None}, "`tools` must be set"),
        ({"tools": []}, "`tools` must be set"),
        ({"tool_choice": named("nope")}, "'nope', which is not among `tools`"),
        ({"tool_choice": {"type": "function"}}, "must be none, auto, required"),
        ({"tool_choice": {"type": "allowed_tools"}}, "must be none, auto, required"),
        ({"tool_choice": "any"}, "must be none, auto, required"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\]"),
        ({"tools": [tool("f", {"$ref": "https://example.invalid/a"})]}, "leads out of its schema"),
    ],
)  # fmt: skip
def test_what_cannot_be_demanded_is_refused_in_plain_words(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InexpressibleRequest, match=message):
        asked(**fields)


# -- against a server -------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("choice", "text", "name", "arguments"),
    [
        ("required", "measure it", "measure", {"unit": "m"}),
        ("required", "hello", "get_weather", {"city": "Oslo"}),
        (named("ping"), "the weather in Rome", "ping", {}),
        (named("get_weather"), "the weather in Rome", "get_weather", {"city": "Rome"}),
    ],
)
async def test_a_server_makes_the_call(
    choice: Any, text: str, name: str, arguments: dict[str, Any], streamed: bool
) -> None:
    async with ollama() as (sim, state):
        ask = {"model": "qwen3:8b", "messages": [{"role": "user", "content": text}], "tools": [WEATHER, MEASURE, PING]}
        response: Any = await ENGINES["ollama"].send(state, call_of({**ask, "tool_choice": choice, "stream": streamed}))
        body = await response.read_all(100_000)
        response.release()
        assert response.violation is None
        assert "tools" not in sim.requests[-1].json
    chosen = chosen_of(body, streamed)
    (call,) = chosen["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (name, arguments)
    assert chosen["finish_reason"] == "tool_calls"


async def test_a_call_that_the_limit_cuts_is_told() -> None:
    async with ollama() as (_, state):
        ask = {"model": "qwen3:8b", "messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 4}
        response: Any = await ENGINES["ollama"].send(state, call_of(ask))
        choice = json.loads(await response.read_all(100_000))["choices"][0]
        response.release()
        assert choice["message"]["content"].startswith('{"name')
        assert choice["finish_reason"] == "length"
        assert response.violation == "tool_choice_ignored"


@both
@pytest.mark.parametrize("strict", [True, False, None])
async def test_a_json_schema_is_enforced_with_and_without_strict(strict: bool | None, streamed: bool) -> None:
    schema = {
        "type": "object",
        "$defs": {"Unit": {"enum": ["m", "ft"]}},
        "properties": {"unit": {"$ref": "#/$defs/Unit"}, "note": {"title": "Note"}},
        "required": ["unit", "note"],
        "additionalProperties": False,
    }
    described = {"name": "x", "schema": schema} | ({"strict": strict} if strict is not None else {})
    async with ollama() as (_, state):
        ask = {
            "model": "qwen3:8b",
            "messages": HELLO,
            "response_format": {"type": "json_schema", "json_schema": described},
        }
        response = await ENGINES["ollama"].send(state, call_of({**ask, "stream": streamed}))
        body = await response.read_all(100_000)
        response.release()
        assert response.status == 200
    chosen = chosen_of(body, streamed)
    assert Draft202012Validator(schema).is_valid(json.loads(chosen["message"]["content"]))


@both
async def test_the_gateway_has_a_call_made_by_ollama(streamed: bool) -> None:
    sim = SimOllama()
    async with sim.serve() as url:
        routes = f"backends: {{chat: {{engine: ollama, url: '{url}', model: 'qwen3:8b', context: 8192}}}}"
        async with running_gateway(routes) as gateway:
            ask = {"model": "chat", "messages": HELLO, "tools": [WEATHER, MEASURE], "tool_choice": named("measure")}
            reply = await gateway.client.post("/v1/chat/completions", json={**ask, "stream": streamed})
            assert reply.status_code == 200
            labels = {"backend": "chat", "kind": "tool_choice_ignored"}
            assert gateway.metric("gateway_violations_total", **labels) == 0
    chosen = chosen_of(reply.content, streamed)
    assert [call["function"] for call in chosen["message"]["tool_calls"]] == [
        {"name": "measure", "arguments": '{"unit": "m"}'}
    ]
    assert chosen["finish_reason"] == "tool_calls"


def test_only_ollama_emulates() -> None:
    assert {name for name, traits in TRAITS.items() if traits.emulates_calls} == {"ollama"}
