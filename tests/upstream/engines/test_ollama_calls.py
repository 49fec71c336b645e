"""A call that has to be made, on Ollama: asked for as structured output, given back as a call or as what it was."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.backend import BackendState
from gateway.config.snapshot import Backend
from gateway.sim import SimOllama
from gateway.sim.ollama_format import check_format
from gateway.upstream.connect import open_client
from gateway.upstream.engines import ENGINES
from gateway.upstream.engines.ollama import OllamaEngine
from gateway.upstream.engines.ollama_calls import Demand, read_demand
from gateway.upstream.engines.ollama_request import OllamaCall, Thinking, chat_call
from gateway.upstream.engines.refusal import Refused
from tests.support import running_gateway
from tests.upstream.engines.scripted import ScriptedClient, ScriptedResponse, call_of, events_of, state_of

HELLO = [{"role": "user", "content": "hello"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
UNITS = {
    "type": "object",
    "$defs": {"Unit": {"enum": ["m", "ft"]}},
    "properties": {"unit": {"$ref": "#/$defs/Unit"}},
    "required": ["unit"],
}
DONE: dict[str, Any] = {"done": True, "done_reason": "stop", "prompt_eval_count": 12, "eval_count": 5}


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, **more} | ({"parameters": parameters} if parameters is not None else {})
    return {"type": "function", "function": function}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


WEATHER = tool("get_weather", CITY, description="The weather of a city")
MEASURE = tool("measure", UNITS)
PING = tool("ping")


def demand(tools: list[Any], choice: Any = "required") -> Demand:
    read = read_demand(tools, choice)
    assert read is not None
    return read


def asked(*, thinking: Thinking | None = None, **fields: Any) -> OllamaCall:
    given = {"model": "qwen3:8b", "messages": HELLO, "tools": [WEATHER], "tool_choice": "required", **fields}
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.items()}
    return chat_call(raw, stream=False, window=8192, thinking=thinking)


# -- what is asked ----------------------------------------------------------------------------------------------------


def test_a_named_choice_is_the_schema_of_that_call() -> None:
    form = demand([WEATHER, PING], named("get_weather")).format
    assert form == {
        "type": "object",
        "properties": {"name": {"const": "get_weather"}, "parameters": CITY},
        "required": ["name", "parameters"],
    }


def test_the_name_may_stand_without_its_function_as_in_the_responses_api() -> None:
    flat = {"type": "function", "name": "ping"}
    assert demand([WEATHER, PING], flat).format == demand([WEATHER, PING], named("ping")).format


def test_required_is_one_of_the_offered_calls_with_references_at_the_root() -> None:
    form = demand([WEATHER, MEASURE, PING]).format
    check_format(form)
    fits = Draft202012Validator(form).is_valid
    assert fits({"name": "get_weather", "parameters": {"city": "Rome"}})
    assert fits({"name": "measure", "parameters": {"unit": "ft"}})
    assert fits({"name": "ping", "parameters": {}})
    assert not fits({"name": "measure", "parameters": {"unit": "mile"}})
    assert not fits({"name": "get_weather", "parameters": {"unit": "ft"}})
    assert not fits({"name": "other", "parameters": {}})


def test_the_name_is_written_first_even_where_keys_are_sorted() -> None:
    properties = demand([WEATHER]).format["properties"]
    assert sorted(properties) == list(properties) == ["name", "parameters"]


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_takes_an_empty_object(parameters: Any) -> None:
    assert demand([tool("ping", parameters)]).format["properties"]["parameters"] == {"type": "object", "properties": {}}


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
    assert call.demand is None
    assert "format" not in call.body
    assert call.body["messages"] == HELLO


def test_a_call_goes_before_a_format_of_the_answer() -> None:
    assert asked(response_format={"type": "json_object"}).body["format"] == demand([WEATHER]).format


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
    with pytest.raises(Refused, match=message):
        asked(**fields)


# -- what is answered -------------------------------------------------------------------------------------------------


def said(**message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": "", **message}, "done": False}


def ndjson(*lines: dict[str, Any]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


async def answered(
    *lines: dict[str, Any], streamed: bool, tools: list[Any] | None = None, **fields: Any
) -> tuple[dict[str, Any], str | None]:
    """(the choice as one object, the violation), from lines or from the whole answer that they make."""
    ask = {
        "model": "qwen3:8b",
        "messages": HELLO,
        "tools": tools or [WEATHER, PING],
        "tool_choice": "required",
        **fields,
    }
    body = ndjson(*lines) if streamed else ndjson(joined(*lines))
    state = state_of(backend(), ScriptedClient(ScriptedResponse(200, [body])))
    response: Any = await OllamaEngine().send(state, call_of({**ask, "stream": streamed}))
    read = await response.read_all(10_000_000)
    if not streamed:
        return msgspec.json.decode(read)["choices"][0], response.violation
    *chunks, done = events_of(read)
    assert done == "[DONE]"
    return gathered([chunk["choices"][0] for chunk in chunks]), response.violation


def backend(**changed: Any) -> Backend:
    return Backend("q", "ollama", **{"url": "http://127.0.0.1:1", "context": 8192, **changed})


def joined(*lines: dict[str, Any]) -> dict[str, Any]:
    messages = [line.get("message") or {} for line in lines]
    message = {key: "".join(m.get(key) or "" for m in messages) for key in ("content", "thinking")}
    calls = [call for m in messages for call in m.get("tool_calls", [])]
    return {**lines[-1], "message": {"role": "assistant", **message} | ({"tool_calls": calls} if calls else {})}


def gathered(choices: list[Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"content": ""}
    for delta in [choice["delta"] for choice in choices]:
        message["content"] += delta.get("content") or ""
        if delta.get("reasoning"):
            message["reasoning"] = message.get("reasoning", "") + delta["reasoning"]
        for call in delta.get("tool_calls", []):
            message.setdefault("tool_calls", []).append({k: v for k, v in call.items() if k != "index"})
    return {"message": message, "finish_reason": choices[-1]["finish_reason"]}


def chosen_of(body: bytes, streamed: bool) -> dict[str, Any]:
    if not streamed:
        choice: dict[str, Any] = json.loads(body)["choices"][0]
        return choice
    return gathered([event["choices"][0] for event in events_of(body)[:-1]])


both = pytest.mark.parametrize("streamed", [True, False])


@both
@pytest.mark.parametrize("word", ["parameters", "arguments"])
async def test_the_text_becomes_a_call(word: str, streamed: bool) -> None:
    lines = (
        said(content='{"name": "get_weather", "'),
        said(content=word + '": {"city": "Zürich"}}\n'),
        {**said(), **DONE},
    )
    choice, violation = await answered(*lines, streamed=streamed)
    (call,) = choice["message"]["tool_calls"]
    assert re.fullmatch("call_[0-9a-f]{24}", call["id"])
    assert call["type"] == "function"
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Zürich"}'}
    assert not choice["message"]["content"]
    assert choice["finish_reason"] == "tool_calls"
    assert violation is None


async def test_a_streamed_call_is_one_delta_and_nothing_of_its_text_goes_before() -> None:
    text = '{"name":"ping","parameters":{}}'
    ask = {"model": "m", "messages": HELLO, "tools": [PING], "tool_choice": "required", "stream": True}
    pieces = [ndjson(said(content=part)) for part in text] + [ndjson({**said(), **DONE})]
    state = state_of(backend(), ScriptedClient(ScriptedResponse(200, pieces)))
    response = await OllamaEngine().send(state, call_of(ask))
    events = events_of(await response.read_all(100_000))
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert [next(iter(delta), "") for delta in deltas] == ["role", "tool_calls", ""]
    assert deltas[1]["tool_calls"][0]["function"] == {"name": "ping", "arguments": "{}"}


@both
@pytest.mark.parametrize(
    "text",
    [
        "I would rather not.",
        '{"name": "get_weather", "parameters": {"city": "Ro',
        '{"name": "other", "parameters": {}}',
        '{"name": "get_weather", "parameters": {}}',
        '{"name": "get_weather", "parameters": "Rome"}',
        '{"name": "ping"}',
        '[{"name": "ping", "parameters": {}}]',
        '{"name": "ping", "parameters": {}} {"name": "ping", "parameters": {}}',
        "",
    ],
)
async def test_what_is_no_valid_call_goes_out_as_it_is_and_is_told(text: str, streamed: bool) -> None:
    lines = (said(content=text[:9]), said(content=text[9:]), {**said(), **DONE})
    choice, violation = await answered(*lines, streamed=streamed)
    assert choice["message"]["content"] == text
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    assert violation == "tool_choice_ignored"


@both
async def test_another_tool_than_the_named_one_is_no_answer_to_it(streamed: bool) -> None:
    line = {**said(content='{"name":"ping","parameters":{}}'), **DONE}
    choice, violation = await answered(line, streamed=streamed, tool_choice=named("get_weather"))
    assert "tool_calls" not in choice["message"]
    assert violation == "tool_choice_ignored"


@both
async def test_thoughts_pass_and_alone_are_no_call(streamed: bool) -> None:
    choice, violation = await answered(
        said(thinking="hm"), {**said(), **DONE, "done_reason": "length"}, streamed=streamed
    )
    assert choice["message"]["reasoning"] == "hm"
    assert choice["finish_reason"] == "length"
    assert violation == "tool_choice_ignored"


@both
async def test_a_call_that_is_complete_at_the_limit_was_not_cut(streamed: bool) -> None:
    line = {**said(content='{"name":"ping","parameters":{}}   '), **DONE, "done_reason": "length"}
    choice, violation = await answered(line, streamed=streamed)
    assert choice["finish_reason"] == "tool_calls"
    assert violation is None


@both
async def test_a_call_that_ollama_has_read_itself_counts(streamed: bool) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    choice, violation = await answered(said(tool_calls=[call]), {**said(), **DONE}, streamed=streamed)
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["get_weather"]
    assert violation is None


@both
async def test_logprobs_of_a_text_that_is_no_call_are_kept(streamed: bool) -> None:
    entry = {"token": "x", "logprob": -0.5}
    lines = ({**said(content="x"), "logprobs": [entry]}, {**said(), **DONE})
    ask = {"model": "m", "messages": HELLO, "tools": [PING], "tool_choice": "required", "logprobs": True}
    body = ndjson(*lines) if streamed else ndjson({**joined(*lines), "logprobs": [entry]})
    state = state_of(backend(), ScriptedClient(ScriptedResponse(200, [body])))
    response = await OllamaEngine().send(state, call_of({**ask, "stream": streamed}))
    assert (await response.read_all(100_000)).count(b'"logprob":-0.5') == 1


async def test_a_text_too_long_to_be_held_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.engines.ollama_calls.HELD_MOST", 10)
    lines = (said(content='{"name":"p'), said(content='ing","parameters"'), said(content=":{}}"), {**said(), **DONE})
    choice, violation = await answered(*lines, streamed=True)
    assert choice["message"]["content"] == '{"name":"ping","parameters":{}}'
    assert violation == "tool_choice_ignored"


async def test_a_stream_that_breaks_gives_nothing_of_what_was_held() -> None:
    ask = {"model": "m", "messages": HELLO, "tools": [PING], "tool_choice": "required", "stream": True}
    state = state_of(backend(), ScriptedClient(ScriptedResponse(200, [ndjson(said(content="x"), {"error": "died"})])))
    response: Any = await OllamaEngine().send(state, call_of(ask))
    events = events_of(await response.read_all(100_000))
    assert events[-1]["error"]["message"] == "died"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert response.violation is None


async def test_while_a_call_is_held_the_stream_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {"model": "m", "messages": HELLO, "tools": [PING], "tool_choice": "required", "stream": True}

    async def chunks() -> int:
        pieces = [ndjson(said(content=part)) for part in '{"name":"ping","parameters":{}}'] + [
            ndjson({**said(), **DONE})
        ]
        response = await OllamaEngine().send(
            state_of(backend(), ScriptedClient(ScriptedResponse(200, pieces))), call_of(ask)
        )
        return (await response.read_all(100_000)).count(b'"delta":{"content":""}')

    assert await chunks() == 0
    monkeypatch.setattr("gateway.upstream.engines.ollama_stream.SIGN_EVERY", 0.0)
    assert await chunks() > 10


@settings(deadline=None)
@given(
    st.sampled_from(["get_weather", "ping", "other"]),
    st.dictionaries(st.sampled_from(["city", "b"]), st.text(max_size=5), max_size=2),
    st.lists(st.integers(1, 30), max_size=6),
    st.booleans(),
)
async def test_however_it_is_cut_it_is_a_call_or_the_same_text(
    name: str, arguments: dict[str, str], cuts: list[int], ascii_only: bool
) -> None:
    text = json.dumps({"name": name, "parameters": arguments}, ensure_ascii=ascii_only)
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(text[start : start + cut])
        start += cut
    lines = [said(content=piece) for piece in [*pieces, text[start:]]]
    choice, violation = await answered(*lines, {**said(), **DONE}, streamed=True)
    if name == "ping" or (name == "get_weather" and "city" in arguments):
        (call,) = choice["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (name, arguments)
        assert (choice["message"]["content"], violation) == ("", None)
    else:
        assert (choice["message"]["content"], violation) == (text, "tool_choice_ignored")


# -- against a server -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def ollama() -> AsyncIterator[tuple[SimOllama, BackendState]]:
    sim = SimOllama()
    async with sim.serve() as url:
        box = backend(url=url)
        client = open_client(box.origin, connect_timeout=3.0)
        try:
            yield sim, state_of(box, client)
        finally:
            await client.close()


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
    assert {name for name, engine in ENGINES.items() if engine.emulates_calls} == {"ollama"}
