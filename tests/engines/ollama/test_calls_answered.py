"""A call that had to be made, on Ollama: given back as a call, or as what it was."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.engines.ollama.engine import OllamaEngine
from tests.engines.ollama_lines import DONE, backend, ndjson, said
from tests.engines.ollama_tools import HELLO, PING, WEATHER, both, gathered, named
from tests.engines.scripted import ScriptedClient, ScriptedResponse, call_of, events_of, state_of


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


def joined(*lines: dict[str, Any]) -> dict[str, Any]:
    messages = [line.get("message") or {} for line in lines]
    message = {key: "".join(m.get(key) or "" for m in messages) for key in ("content", "thinking")}
    calls = [call for m in messages for call in m.get("tool_calls", [])]
    return {**lines[-1], "message": {"role": "assistant", **message} | ({"tool_calls": calls} if calls else {})}


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
    monkeypatch.setattr("gateway.engines.ollama.calls.HELD_MOST", 10)
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
    monkeypatch.setattr("gateway.engines.ollama.stream.KEEPALIVE_EVERY", 0.0)
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
