"""The four doors of a chat: what a client sends at each, and what it reads in the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

Body = dict[str, Any]
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "ollama": "/api/chat",
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@dataclass
class Read:
    """What a client reads. `calls`: (name, arguments as a value, or the text where it is no JSON). `cut`: the stream
    was not ended."""

    status: int
    headers: dict[str, str]
    text: str = ""
    thoughts: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    finish: str = ""
    error: str = ""
    code: str = ""
    raw: str = ""


def body_of(door: str, asked: Body, tools: list[str], *, stream: bool) -> Body:
    """`asked`: what the case says for this door; the rest is usual."""
    body: Body = {"model": "chain", "stream": stream, **asked}
    if door == "responses":
        body.setdefault("input", "How many?")
    else:
        body.setdefault("messages", [{"role": "user", "content": "How many?"}])
    if door == "messages":
        body.setdefault("max_tokens", 500)
    if tools:
        body.setdefault("tools", [_tool(door, name) for name in tools])
    return body


def _tool(door: str, name: str) -> Body:
    if door == "messages":
        return {"name": name, "description": "A tool.", "input_schema": SCHEMA}
    function = {"name": name, "description": "A tool.", "parameters": SCHEMA}
    return {"type": "function", **function} if door == "responses" else {"type": "function", "function": function}


def read(door: str, response: httpx.Response) -> Read:
    got = Read(response.status_code, dict(response.headers), raw=response.text)
    kind = response.headers.get("content-type", "")
    if "application/x-ndjson" in kind:
        for line in response.text.splitlines():
            _ollama(got, json.loads(line))
        return got
    if "text/event-stream" in kind:
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        {"chat": _chat_stream, "messages": _message_stream, "responses": _response_stream}[door](got, events)
        return got
    body = response.json()
    if response.status_code >= 300:
        _error(got, body)
    else:
        {"chat": _chat, "messages": _message, "responses": _response, "ollama": _ollama}[door](got, body)
    return got


def _error(got: Read, body: Body) -> None:
    error = body.get("error") or {}
    if isinstance(error, str):
        error = {"message": error, "code": body.get("code")}  # Ollama's
    got.error, got.code = str(error.get("message")), str(error.get("code") or error.get("type"))


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _chat(got: Read, body: Body) -> None:
    choice = body["choices"][0]
    message = choice["message"]
    got.text, got.finish = message.get("content") or "", choice["finish_reason"]
    got.thoughts = message.get("reasoning") or message.get("reasoning_content") or ""
    got.calls = [_chat_call(call) for call in message.get("tool_calls") or ()]
    assert all(call["id"] for call in message.get("tool_calls") or ())


def _chat_call(call: Body) -> tuple[str, Any]:
    if "custom" in call:
        return call["custom"]["name"], call["custom"]["input"]
    return call["function"]["name"], _value(call["function"]["arguments"])


def _chat_stream(got: Read, events: list[Body]) -> None:
    calls: dict[int, list[str]] = {}
    for event in events:
        if "error" in event:
            _error(got, event)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            got.text += delta.get("content") or ""
            got.thoughts += delta.get("reasoning") or delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or ():
                if "custom" in call:
                    assert call["id"]
                    got.calls.append(_chat_call(call))
                    continue
                function = call.get("function") or {}
                if call["index"] not in calls:
                    assert call["id"]
                    assert function["name"]
                    calls[call["index"]] = [function["name"], ""]
                calls[call["index"]][1] += function.get("arguments") or ""
            got.finish = choice.get("finish_reason") or got.finish
    got.calls += [(name, _value(arguments)) for name, arguments in calls.values()]


def _message(got: Read, body: Body) -> None:
    for block in body["content"]:
        got.text += block.get("text", "")
        got.thoughts += block.get("thinking", "")
        if block["type"] == "tool_use":
            assert block["id"]
            got.calls.append((block["name"], block["input"]))
    got.finish = _FINISH.get(body["stop_reason"], "other")


_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


def _message_stream(got: Read, events: list[Body]) -> None:
    calls: dict[int, list[str]] = {}
    for event in events:
        kind = event["type"]
        if kind == "error":
            _error(got, event)
        elif kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            assert event["content_block"]["id"]
            calls[event["index"]] = [event["content_block"]["name"], ""]
        elif kind == "content_block_delta":
            delta = event["delta"]
            got.text += delta.get("text", "")
            got.thoughts += delta.get("thinking", "")
            if "partial_json" in delta:
                calls[event["index"]][1] += delta["partial_json"]
        elif kind == "message_delta":
            got.finish = _FINISH.get(event["delta"]["stop_reason"], "other")
    got.calls = [(name, _value(arguments or "{}")) for name, arguments in calls.values()]


def _ollama(got: Read, body: Body) -> None:
    """A whole answer, or a line of a stream."""
    if "error" in body:
        _error(got, body)
        return
    message = body["message"]
    got.text += message["content"]
    got.thoughts += message.get("thinking", "")
    got.calls += [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    if body["done"]:
        got.finish = "tool_calls" if got.calls else body["done_reason"]


def _response(got: Read, body: Body) -> None:
    for item in body["output"]:
        if item["type"] == "message":
            got.text += "".join(part.get("text", "") for part in item["content"])
        elif item["type"] == "reasoning":
            got.thoughts += "".join(part["text"] for part in (*item["summary"], *(item.get("content") or ())))
        elif item["type"] == "function_call":
            assert item["call_id"]
            name = f"{item['namespace']}/{item['name']}" if item.get("namespace") else item["name"]
            got.calls.append((name, _value(item["arguments"])))
        elif item["type"] == "custom_tool_call":
            got.calls.append((item["name"], item["input"]))
    reason = (body.get("incomplete_details") or {}).get("reason")
    got.finish = "length" if reason == "max_output_tokens" else "tool_calls" if got.calls else "stop"


def _response_stream(got: Read, events: list[Body]) -> None:
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        if event["type"] == "error":
            _error(got, {"error": event})
        elif event["type"] in ("response.completed", "response.incomplete"):
            _response(got, event["response"])
        elif event["type"] == "response.failed":
            _error(got, event["response"])
