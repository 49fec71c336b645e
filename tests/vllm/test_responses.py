"""The gateway's responses are what vLLM's own `/v1/responses` says, and say what its chats say to the same request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support import RunningGateway, running_gateway

from .asks import CALL, script
from .servers import VllmServer

RESPONSES = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LOOP: Any = [
    {"role": "user", "content": "What is the weather?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I look."}]},
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
]
CALLS = "<think>two</think>" + CALL % "Oslo" + "\n" + CALL % "Rome"
FORCED = script("x", script_forced=CALL % "Oslo")
BODIES: dict[str, dict[str, Any]] = {
    "thoughts and text": {"input": "hi", **script("<think>\nhm.\n</think>\n\nHello there.")},
    "instructions": {"input": "hi", "instructions": "Be brief.", **script("<think>x</think>Hello")},
    "a call": {"input": "hi", "tools": [TOOL], **script("<think>x</think>Sure. " + CALL % "Oslo")},
    "two calls": {"input": "hi", "tools": [TOOL], **script(CALLS)},
    "a call that is demanded": {"input": "hi", "tools": [TOOL], "tool_choice": "required", **FORCED},
    "a named call": {
        "input": "hi", "tools": [TOOL], "tool_choice": {"type": "function", "name": "get_weather"}, **FORCED,
    },
    "a call's result": {"input": LOOP, "tools": [TOOL], **script("<think>x</think>It rains.")},
    "a limit": {"input": "hi", "max_output_tokens": 4, **script("<think></think>one two three four five six")},
    "a format": {
        "input": "hi",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": NUMBER}},
        **script("<think>hm</think>" + '{"a":1}'),
    },
    "no thinking": {"input": "hi", "chat_template_kwargs": {"enable_thinking": False}, **script("Hello there")},
    "an effort": {"input": "hi", "reasoning": {"effort": "high"}, **script("<think>x</think>Hello")},
}  # fmt: skip
every_body = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
each_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@asynccontextmanager
async def gateway_of(server: VllmServer) -> AsyncIterator[RunningGateway]:
    parsers = {"tool_parser": "hermes", "reasoning_parser": "qwen3"}
    backends = server.routes("tiny", **parsers), server.routes("chats", responses="chat", **parsers)
    async with running_gateway(f"backends: {{{', '.join(backends)}}}") as gateway:
        await gateway.until_ready("tiny", "chats")
        yield gateway


def response_of(answer: httpx.Response) -> dict[str, Any]:
    """The response, of a stream that of its last event, which says what the events before have said."""
    assert answer.status_code == 200, answer.text
    if "event-stream" not in answer.headers["content-type"]:
        found: dict[str, Any] = answer.json()
        return found
    events = [json.loads(event.partition("\ndata: ")[2]) for event in answer.text.split("\n\n")[:-1]]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response: dict[str, Any] = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["id"] for item in done] == [item["id"] for item in response["output"]]
    for kind, name in (("output_text", "text"), ("function_call_arguments", "arguments")):
        said = "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")
        ended = "".join(event[name] for event in events if event["type"] == f"response.{kind}.done")
        assert said == ended
    return response


def told(item: dict[str, Any]) -> Any:
    if item["type"] == "function_call":
        return item["type"], item["name"], json.loads(item["arguments"])
    return item["type"], "".join(part["text"] for part in item["content"])


@each_way
@every_body
async def test_a_response_is_vllms_and_says_what_its_chat_says(
    tools: VllmServer, body: dict[str, Any], stream: bool
) -> None:
    asked = {"max_output_tokens": 60, "stream": stream, **body}
    async with gateway_of(tools) as gateway, httpx.AsyncClient(base_url=tools.url, trust_env=False) as vllm:
        ours = await gateway.client.post(RESPONSES, json={"model": "tiny", **asked})
        chat = await gateway.client.post(RESPONSES, json={"model": "chats", **asked})
        real = await vllm.post(RESPONSES, json={"model": "tiny", **asked}, timeout=60)
        assert not gateway.gateway.fleet["tiny"].facts.lacks
    passed, own, translated = response_of(ours), response_of(real), response_of(chat)
    assert "input_messages" in passed  # a field that only vLLM writes
    assert "input_messages" not in translated
    assert list(map(told, passed["output"])) == list(map(told, own["output"]))
    for name in own.keys() - {"id", "created_at", "output", "usage"}:
        assert passed[name] == own[name], name
    kept = [said for said in map(told, own["output"]) if said[0] != "message" or said[1].strip()]
    assert list(map(told, translated["output"])) == kept
    for count in ("input_tokens", "output_tokens"):
        assert passed["usage"][count] == own["usage"][count] == translated["usage"][count]
    assert passed["status"] == own["status"] == translated["status"]


@each_way
async def test_hosted_tools_are_never_sent(tools: VllmServer, stream: bool) -> None:
    body = {"model": "tiny", "input": "hi", "stream": stream, "tools": [{"type": "web_search"}]}
    async with gateway_of(tools) as gateway:
        answered = await gateway.client.post(RESPONSES, json={**body, "max_output_tokens": 16})
        refused = await gateway.client.post(RESPONSES, json={**body, "tool_choice": {"type": "web_search"}})
    assert (answered.status_code, answered.headers["x-gateway-left-out"]) == (200, "web_search")
    assert refused.status_code == 400


@each_way
async def test_a_prompt_beyond_the_window_is_told_as_a_chats(tools: VllmServer, stream: bool) -> None:
    body = {"model": "tiny", "input": "hi " * 3000, "stream": stream}
    async with gateway_of(tools) as gateway:
        refused = await gateway.client.post(RESPONSES, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
