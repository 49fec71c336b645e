"""Answers in another form than was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.endpoints import CHAT, COMPLETIONS
from gateway.domain.upstream import ErrorTold, UpstreamFailure
from gateway.inspection.assembler import begins_events, events_of, whole_of

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
MESSAGE = {"role": "assistant", "content": "Twelve.", "tool_calls": [CALL]}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
MOST = 10_000


def body(choice: dict[str, Any], **more: Any) -> bytes:
    whole = {"id": "a", "object": "chat.completion", "created": 2, "model": "m", "choices": [choice], **more}
    return json.dumps(whole).encode()


def test_a_whole_answer_becomes_events_and_events_a_whole_answer() -> None:
    choice = {"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "tool_calls"}
    given = body(choice, usage=USAGE)
    events = events_of(given, CHAT)
    assert events is not None
    assert b'"index":0,"id":"c1"' in events or b'"id":"c1"' in events
    assert events.endswith(b"data: [DONE]\n\n")
    assert json.loads(whole_of(events, CHAT, MOST)) == json.loads(given)


def test_a_text_completion_too() -> None:
    events = events_of(body({"index": 0, "text": "Twelve.", "finish_reason": "stop"}), COMPLETIONS)
    assert events is not None
    assert json.loads(whole_of(events, COMPLETIONS, MOST))["choices"][0]["text"] == "Twelve."


@pytest.mark.parametrize("given", [b"", b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [1]}', b'"a"'])
def test_what_is_no_answer_becomes_none(given: bytes) -> None:
    assert events_of(given, CHAT) is None


def test_an_error_stays_one() -> None:
    events = events_of(b'{"error": {"message": "no"}}', CHAT)
    assert events == b'data: {"error":{"message":"no"}}\n\n'
    with pytest.raises(ErrorTold):
        whole_of(events, CHAT, MOST)


def test_events_that_end_early_are_no_answer() -> None:
    with pytest.raises(UpstreamFailure):
        whole_of(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', CHAT, MOST)


@pytest.mark.parametrize("data", [b"data: {}", b"\n\ndata:{}", b": ping\n", b"event: a\n", b"error: {}"])
def test_events_are_known_by_their_beginning(data: bytes) -> None:
    assert begins_events(data)


@pytest.mark.parametrize("data", [b"", b'{"data": 1}', b"<html>", b"database"])
def test_what_does_not_begin_so_is_no_stream(data: bytes) -> None:
    assert not begins_events(data)
