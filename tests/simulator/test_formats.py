"""What each parser makes of the text its own family writes, and of text it was not made for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import SimVllm
from simulator.formats import FORMATS, format_of
from simulator.parsers import ToolStream, parse
from simulator.tokens import pieces
from tests.simulator.wire import ask, chat, said

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOLS = [
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
]
CALL = {"city": "Oslo", "days": 3}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("parser", sorted(FORMATS))
async def test_a_call_in_the_familys_own_format_comes_out_as_a_call(parser: str, stream: bool) -> None:
    sim = SimVllm(tool_parser=parser)
    asked = chat("get_weather in Oslo for 3 days", tools=TOOLS, stream=stream)
    async with sim.serve() as url:
        reply = await ask(url, "/v1/chat/completions", asked)
    if stream:
        call = said(reply)["call 0"]
        name, arguments = call[: call.index("{")], call[call.index("{") :]
        assert reply.events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    else:
        function = reply.json["choices"][0]["message"]["tool_calls"][0]["function"]
        name, arguments = function["name"], function["arguments"]
        assert reply.json["choices"][0]["finish_reason"] == "tool_calls"
    assert (name, json.loads(arguments)) == ("get_weather", CALL)


@pytest.mark.parametrize("parser", sorted(set(FORMATS) - {"qwen3_json", "poolside_v1"}))
def test_several_calls_keep_their_order(parser: str) -> None:
    form = format_of(parser)
    raw = form.render([("get_weather", CALL), ("ping", {}), ("get_weather", {"city": "Rome", "days": 1})])
    message = parse(pieces(raw), None, False, form, {"get_weather": SCHEMA}, True)
    assert [c.name for c in message.calls] == ["get_weather", "ping", "get_weather"]
    assert json.loads(message.calls[2].arguments) == {"city": "Rome", "days": 1}


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), ("named", "stop")])
async def test_a_forced_choice_calls_and_ends_with_vllms_reason(choice: str, reason: str) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    async with SimVllm(tool_parser="hermes").serve() as url:
        body = chat("hello", tools=TOOLS, tool_choice=named if choice == "named" else choice)
        reply = (await ask(url, "/v1/chat/completions", body)).json["choices"][0]
    expected = "get_weather" if choice == "named" else "ping"
    assert reply["message"]["tool_calls"][0]["function"]["name"] == expected
    assert reply["finish_reason"] == reason


@pytest.mark.parametrize(("parser", "kept"), [("hermes", True), ("gemma4", False), ("deepseek_v4", False)])
async def test_tool_choice_none_keeps_the_markup_of_some_parsers(parser: str, kept: bool) -> None:
    async with SimVllm(tool_parser=parser).serve() as url:
        body = chat("the weather", tools=TOOLS, tool_choice="none")
        message = (await ask(url, "/v1/chat/completions", body)).json["choices"][0]["message"]
    assert "tool_calls" not in message
    assert bool(message["content"]) == kept


async def test_without_a_parser_tool_choice_none_leaves_the_call_in_the_text() -> None:
    async with SimVllm(tool_parser=None, family="qwen3_xml").serve() as url:
        body = chat("the weather", tools=TOOLS, tool_choice="none")
        message = (await ask(url, "/v1/chat/completions", body)).json["choices"][0]["message"]
    assert message["content"].startswith("<tool_call>\n<function=ping>")


@pytest.mark.parametrize(
    ("parser", "family", "stream", "content"),
    [("qwen3_xml", "hermes", False, None), ("qwen3_xml", "hermes", True, ""), ("hermes", "qwen3_xml", True, "")],
)
async def test_a_parser_of_another_family_is_a_silent_empty_200(
    parser: str, family: str, stream: bool, content: Any
) -> None:
    async with SimVllm(tool_parser=parser, family=family).serve() as url:
        body = chat(
            "the weather", tools=TOOLS, stream=stream, stream_options={"include_usage": True} if stream else None
        )
        reply = await ask(url, "/v1/chat/completions", body)
    if stream:
        assert said(reply) == {}
        assert reply.events[-2]["usage"]["completion_tokens"] > 10
    else:
        assert reply.json["choices"][0]["message"]["content"] == content
        assert reply.json["usage"]["completion_tokens"] > 10


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "get_weather", "argum', ""),
        ('{"name": "get_weather", "arguments": ', ""),
        ('{"name": "get_weather", "arguments": {"city": "Os', '{"city": "Os'),
        ('{"name": "get_weather", "arguments": {"city": "Oslo"}}', '{"city": "Oslo"}'),
    ],
)
async def test_hermes_streams_what_there_is_of_an_unclosed_call(text: str, arguments: str) -> None:
    body = chat(tools=TOOLS, stream=True, vllm_xargs={"script": f"<tool_call>\n{text}"})
    async with SimVllm(tool_parser="hermes").serve() as url:
        reply = await ask(url, "/v1/chat/completions", body)
    assert said(reply) == {"call 0": "get_weather" + arguments}
    assert reply.events[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_xml_under_hermes_is_raw_text_without_stream() -> None:
    async with SimVllm(tool_parser="hermes", family="qwen3_xml").serve() as url:
        reply = await ask(url, "/v1/chat/completions", chat("the weather", tools=TOOLS))
    assert reply.json["choices"][0]["message"]["content"].startswith("<tool_call>\n<function=")


@pytest.mark.parametrize(
    ("more", "thinks"),
    [
        ({}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
    ],
)
async def test_thinking_is_switched_by_the_request(more: dict[str, Any], thinks: bool) -> None:
    async with SimVllm(reasoning_parser="qwen3").serve() as url:
        message = (await ask(url, "/v1/chat/completions", chat("12*17", **more))).json["choices"][0]["message"]
    assert bool(message["reasoning"]) == thinks
    assert message["content"].strip() == "12*17 is 204."


async def test_gemma_thinks_only_when_asked() -> None:
    async with SimVllm(tool_parser="gemma4", reasoning_parser="gemma4").serve() as url:
        silent = await ask(url, "/v1/chat/completions", chat())
        asked = await ask(url, "/v1/chat/completions", chat(chat_template_kwargs={"enable_thinking": True}))
    assert silent.json["choices"][0]["message"]["reasoning"] is None
    assert asked.json["choices"][0]["message"]["reasoning"]


async def test_a_model_that_always_thinks_can_not_be_switched() -> None:
    async with SimVllm(reasoning_parser="qwen3", thinking="always").serve() as url:
        body = chat(chat_template_kwargs={"enable_thinking": False})
        message = (await ask(url, "/v1/chat/completions", body)).json["choices"][0]["message"]
    assert message["reasoning"]


async def test_thoughts_without_a_parser_are_content() -> None:
    async with SimVllm(reasoning_parser=None, thinking="optional").serve() as url:
        message = (await ask(url, "/v1/chat/completions", chat())).json["choices"][0]["message"]
    assert message["content"].startswith("<think>")


async def test_a_schema_is_obeyed() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    async with SimVllm(tool_parser=None).serve() as url:
        reply = await ask(url, "/v1/chat/completions", chat("Rome", response_format=wanted))
    assert json.loads(reply.json["choices"][0]["message"]["content"]) == {"city": "Oslo", "days": 1}


async def test_after_a_tools_answer_the_model_speaks() -> None:
    messages = [{"role": "user", "content": "the weather"}, {"role": "tool", "content": "sunny"}]
    async with SimVllm().serve() as url:
        reply = await ask(url, "/v1/chat/completions", {"messages": messages, "tools": TOOLS})
    assert reply.json["choices"][0]["message"]["content"] == "The tool answered: sunny"


@given(st.text(), st.sampled_from(sorted(FORMATS)), st.booleans())
def test_no_text_breaks_a_parser(text: str, parser: str, live: bool) -> None:
    form = format_of(parser)
    parse(pieces(text), None, False, form, {}, live)
    stream = ToolStream(form, {}, lambda: "id", live)
    for token in pieces(text):
        stream.feed(token)
    stream.finish()


@given(st.text(alphabet=st.characters(blacklist_characters="<[{f"), min_size=1), st.sampled_from(sorted(FORMATS)))
def test_text_without_a_marker_is_content_in_full(text: str, parser: str) -> None:
    stream = ToolStream(format_of(parser), {}, lambda: "id")
    deltas = [d for token in pieces(text) for d in stream.feed(token)] + stream.finish()
    assert "".join(d["content"] for d in deltas).rstrip() in (text.rstrip(), text.strip())
    assert parse(pieces(text), None, False, format_of(parser), {}, True).content == text
