"""What an answer says, of each API and as a stream, is read; what is no answer says nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.apps.requests.replay import said

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
SAID = {"text": "Hi", "thoughts": "Hm", "calls": ['look({"at": 1})'], "end": "stop", "error": ""}


def stream(*events: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


WHOLE = {
    "chat": {
        "choices": [{"message": {"content": "Hi", "reasoning": "Hm", "tool_calls": [CALL]}, "finish_reason": "stop"}]
    },
    "messages": {
        "content": [
            {"type": "thinking", "thinking": "Hm"},
            {"type": "text", "text": "Hi"},
            {"type": "tool_use", "name": "look", "input": {"at": 1}},
        ],
        "stop_reason": "stop",
    },
    "responses": {
        "output": [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]},
            {"type": "function_call", "name": "look", "arguments": '{"at": 1}'},
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("api", WHOLE)
def test_a_whole_answer(api: str) -> None:
    expected = SAID | ({"end": ""} if api == "responses" else {})
    assert said(json.dumps(WHOLE[api]).encode()) == expected


def test_streams_are_joined() -> None:
    chat = stream(
        delta(role="assistant"),
        delta(reasoning_content="H"),
        delta(reasoning_content="m"),
        delta(content="Hi"),
        delta(tool_calls=[{"index": 0, "function": {"name": "look", "arguments": '{"at"'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    )
    messages = stream(
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "name": "look", "input": {}}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"at": 1}'}},
        {"type": "message_delta", "delta": {"stop_reason": "stop"}},
    )
    ended = stream({"type": "response.completed", "response": WHOLE["responses"]})
    assert said(chat) == SAID
    assert said(messages) == SAID
    assert said(ended) == SAID | {"end": ""}


def test_an_error_is_told_and_what_is_no_answer_says_nothing() -> None:
    assert said(stream({"error": {"message": "It broke."}}))["error"] == "It broke."
    for odd in (b"", b"\xff\x00", b"[1, null]", b'{"choices": 7}', b'{"choices": [{"delta": []}]}', b"[" * 100_000):
        assert not any(said(odd).values())
