"""Tools that are offered to Ollama, and the answer to a required call as one object."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.engines.ollama.calls import RequiredCall, read_required_call
from gateway.engines.ollama.request import OllamaCall, Thinking, chat_call
from tests.engines.scripted import events_of

HELLO = [{"role": "user", "content": "hello"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
UNITS = {
    "type": "object",
    "$defs": {"Unit": {"enum": ["m", "ft"]}},
    "properties": {"unit": {"$ref": "#/$defs/Unit"}},
    "required": ["unit"],
}


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, **more} | ({"parameters": parameters} if parameters is not None else {})
    return {"type": "function", "function": function}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


WEATHER = tool("get_weather", CITY, description="The weather of a city")
MEASURE = tool("measure", UNITS)
PING = tool("ping")


def required_call(tools: list[Any], choice: Any = "required") -> RequiredCall:
    read = read_required_call(tools, choice)
    assert read is not None
    return read


def asked(*, thinking: Thinking | None = None, **fields: Any) -> OllamaCall:
    given = {"model": "qwen3:8b", "messages": HELLO, "tools": [WEATHER], "tool_choice": "required", **fields}
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.items()}
    return chat_call(raw, stream=False, thinking=thinking)


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
