"""Answers of chats in Ollama's form."""

from __future__ import annotations

import json
import time
from itertools import count
from typing import Any

import pytest

from gateway.apps.dialects.ollama.answer import OllamaAnswer, embeddings_of, error_of
from gateway.domain.upstream import ProtocolFailure
from tests.apps.dialects.answers import DONE, USAGE, called, chunk

AT = "2026-01-01T00:00:00Z"
LOGPROBS = {"content": [{"token": "a", "logprob": -0.1}]}


def answer(*, generates: bool = False) -> OllamaAnswer:
    """Its clock goes on by a second each time."""
    seconds = count()
    return OllamaAnswer("main:latest", 1767225600.0, generates=generates, clock=lambda: next(seconds) * 10**9)


def lines(*events: bytes, generates: bool = False) -> list[dict[str, Any]]:
    held: list[int] = []
    written = answer(generates=generates).lines(events, held.append)
    return [json.loads(line) for line in written.splitlines()]


def whole(message: dict[str, Any], *, generates: bool = False, **choice: Any) -> dict[str, Any]:
    body = {"choices": [{"message": message, "finish_reason": "stop", **choice}], "usage": USAGE}
    found: dict[str, Any] = json.loads(answer(generates=generates).whole(json.dumps(body).encode()))
    return found


def test_a_whole_chat() -> None:
    message = {
        "content": "hi",
        "reasoning": "hm",
        "tool_calls": [called(0, "c1", "now", '{"zone": "UTC"}')["tool_calls"][0]],
    }
    assert whole(message) == {
        "model": "main:latest",
        "created_at": AT,
        "message": {
            "role": "assistant",
            "content": "hi",
            "thinking": "hm",
            "tool_calls": [{"id": "c1", "function": {"name": "now", "arguments": {"zone": "UTC"}}}],
        },
        "done": True,
        "done_reason": "stop",
        "total_duration": 10**9,
        "load_duration": 0,
        "prompt_eval_count": 12,
        "prompt_eval_duration": 0,
        "eval_count": 14,
        "eval_duration": 10**9,
    }


@pytest.mark.parametrize(
    ("message", "choice", "told"),
    [
        ({"content": "hi"}, {}, {"response": "hi"}),
        ({"content": "hi", "reasoning": "hm"}, {}, {"response": "hi", "thinking": "hm"}),
        ({}, {"text": "raw"}, {"response": "raw"}),
        ({"content": "hi"}, {"finish_reason": "length"}, {"response": "hi", "done_reason": "length"}),
        ({"content": "a"}, {"logprobs": LOGPROBS}, {"response": "a", "logprobs": LOGPROBS["content"]}),
    ],
)
def test_a_whole_generation(message: dict[str, Any], choice: dict[str, Any], told: dict[str, Any]) -> None:
    found = whole(message, generates=True, **choice)
    assert {name: found[name] for name in told} == told
    assert "message" not in found


def test_a_stream_ends_with_counts_and_times() -> None:
    role = chunk({"role": "assistant", "content": ""})
    thought, said = chunk({"reasoning": "hm"}), chunk({"content": "hi"})
    got = lines(role, thought, b": comment\n\n", said, chunk({}, "stop"), chunk(None, usage=USAGE), DONE)
    assert [one["message"] for one in got] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "hi"},
        {"role": "assistant", "content": ""},
    ]
    assert [one["done"] for one in got] == [False, False, True]
    assert {"done_reason": "stop", "prompt_eval_count": 12, "eval_count": 14}.items() <= got[-1].items()
    assert (got[-1]["prompt_eval_duration"], got[-1]["eval_duration"]) == (10**9, 10**9)


def test_calls_of_a_stream_come_whole() -> None:
    parts = [called(0, "c1", "now", '{"zo'), called(0, arguments='ne": "UTC"}'), called(1, "c2", "then", "")]
    *_, call, end = lines(*map(chunk, parts), chunk({}, "tool_calls"), DONE)
    assert call["message"]["tool_calls"] == [
        {"id": "c1", "function": {"name": "now", "arguments": {"zone": "UTC"}}},
        {"id": "c2", "function": {"name": "then", "arguments": {}}},
    ]
    assert (call["done"], end["done"], end["done_reason"]) == (False, True, "stop")


def test_a_heartbeat_is_an_empty_line() -> None:
    assert [one["message"]["content"] for one in lines(chunk({}))] == [""]


def test_an_error_in_a_stream_is_a_line() -> None:
    event = b'data: {"error": {"message": "upstream connect error", "code": "stream_interrupted"}}\n\n'
    assert lines(event) == [{"error": "upstream connect error", "code": "stream_interrupted"}]


def test_an_error_is_its_text() -> None:
    body = b'{"error": {"message": "no", "type": "x", "code": "model_not_found"}}'
    assert json.loads(error_of(body)) == {"error": "no", "code": "model_not_found"}


def test_an_unreadable_delta_is_the_backends_fault() -> None:
    with pytest.raises(ProtocolFailure):
        lines(chunk({"content": 1}))


def test_embeddings() -> None:
    body = b'{"data": [{"embedding": [0.10, 1e-7]}, {"embedding": [1]}], "usage": {"prompt_tokens": 3}}'
    assert embeddings_of(body, "e", 5, older=False) == (
        b'{"model":"e","embeddings":[[0.10, 1e-7],[1]],"total_duration":5,"load_duration":0,"prompt_eval_count":3}'
    )
    assert embeddings_of(body, "e", 5, older=True) == b'{"embedding":[0.10, 1e-7]}'
    with pytest.raises(ProtocolFailure):
        embeddings_of(b'{"data": [{}]}', "e", 5, older=False)


def test_a_call_in_many_parts_takes_as_long_as_it_is_and_is_counted() -> None:
    answer = OllamaAnswer("m", 0.0, generates=False, clock=lambda: 0)
    part = chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": " " * 50}}]})
    counted: list[int] = []
    began = time.thread_time()
    for _ in range(40_000):
        answer.lines([part], counted.append)
    assert time.thread_time() - began < 5.0  # with all of it copied for each part, a minute
    assert sum(counted) > 40_000 * 100  # also what is not its text
