"""What spans say: the prompts where they are asked for, tokens, finish reasons, and why an attempt ended."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accounting.record import is_failure
from gateway.apps.tracing.spans import (
    PROMPT_MOST,
    answer_of,
    input_messages,
    operation,
    outcome_of,
    provider,
    usage_attributes,
)
from gateway.config.snapshot import Backend, Engine
from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, ENDPOINTS, Endpoint
from gateway.domain.request import parse
from gateway.domain.request_timer import Stopping
from gateway.domain.upstream import SilenceFailure
from gateway.inspection.error_replies import Verdict
from gateway.inspection.whole import read_whole
from gateway.proxy.exchange import ClientGone
from gateway.proxy.failures import AttemptFailed, StreamBroken

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["role", "content", "tool_calls", "type", "text", "function", "name", "arguments", "id"])
MESSAGE = st.dictionaries(KEYS, JSON | st.lists(st.dictionaries(KEYS, JSON, max_size=5), max_size=3), max_size=6)


def messages(asked: Any, endpoint: Endpoint = CHAT) -> Any:
    """What is exported of this prompt."""
    name = endpoint.prompt[0]
    found = input_messages(parse(endpoint, json.dumps({"model": "m", name: asked}).encode()))
    return json.loads(found) if found is not None else None


def text(role: str, *contents: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content} for content in contents]}


def test_a_conversation_is_told_in_the_words_of_the_conventions() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    asked = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Ulm?"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    assert messages(asked) == [
        text("system", "Be brief."),
        {"role": "user", "parts": [{"type": "text", "content": "Ulm?"}, {"type": "image_url", "left_out": True}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c1", "name": "weather", "arguments": '{"city": "Ulm"}'}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rain"}]},
    ]


def test_a_prompt_and_an_input_are_the_users_words() -> None:
    assert messages("Once upon", COMPLETIONS) == [text("user", "Once upon")]
    assert messages(["a", "b"], EMBEDDINGS) == [text("user", '["a","b"]')]


def test_of_a_long_conversation_the_latest_messages_are_told() -> None:
    asked = [{"role": "user", "content": f"{i} " + "x" * 1000} for i in range(200)]
    found = messages(asked)
    assert found[-1]["parts"][0]["content"].startswith("199 ")
    assert 50 < len(found) < 100
    assert len(json.dumps(found, separators=(",", ":"))) <= PROMPT_MOST
    assert messages([{"role": "user", "content": "x" * PROMPT_MOST}]) == []


@given(st.lists(MESSAGE | JSON, max_size=5) | JSON, st.sampled_from(ENDPOINTS))
def test_whatever_was_sent_is_told_or_left_out(asked: Any, endpoint: Endpoint) -> None:
    for message in messages(asked, endpoint) or []:
        assert message.keys() == {"role", "parts"}
        assert all("type" in part for part in message["parts"])


def test_what_is_no_json_is_left_out() -> None:
    request = parse(CHAT, b'{"model": "m"}')
    assert input_messages(request) is None
    request.fields["messages"] = msgspec.Raw(b"[" * 100_000)
    assert input_messages(request) is None


# -- answers ----------------------------------------------------------------------------------------------------------


def test_the_finish_reason_of_every_choice_is_told() -> None:
    choices = [
        {"index": i, "message": {"content": "x"}, "finish_reason": why} for i, why in enumerate(("stop", "length"))
    ]
    body = json.dumps({"model": "org/m", "choices": choices}).encode()
    answer = read_whole(body, parse(CHAT, b'{"model": "m", "n": 2}'))
    assert answer_of(answer) == ("org/m", ("stop", "length"))


def test_an_answer_without_choices_has_no_finish_reason() -> None:
    embedded = read_whole(b'{"data": [], "model": 3}', parse(EMBEDDINGS, b'{"model": "m", "input": "x"}'))
    assert answer_of(embedded) == (None, ())
    assert answer_of(None) == (None, ())


def test_tokens_are_told_as_they_were_reported() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    assert usage_attributes(usage) == {
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.reasoning.output_tokens": 3,
    }


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AttemptFailed(Verdict("failed", "answered 500: what was asked")), ("failed", "answered 500")),
        (AttemptFailed(Verdict("failed", "silence"), SilenceFailure()), ("timeout", "silence")),
        (AttemptFailed(Verdict("empty", "answered with nothing")), ("empty", "answered with nothing")),
        (StreamBroken("a failure: sent an error event: what was asked"), ("stream_interrupted", "a failure")),
        (ClientGone(), ("client_gone", "")),
        (Stopping(), ("stopping", "")),
        (RuntimeError("what was asked"), ("RuntimeError", "")),
    ],
)
def test_why_an_attempt_ended_is_told_without_the_backends_own_words(error: Exception, said: tuple[str, str]) -> None:
    assert outcome_of(error) == said


@pytest.mark.parametrize(
    ("outcome", "failed"),
    [("200", False), ("upstream_error", True), ("stream_interrupted", True), ("queue_full", False), ("422", False)],
)
def test_a_failure_is_ours_or_a_backends(outcome: str, failed: bool) -> None:
    assert is_failure(outcome) is failed


@pytest.mark.parametrize(
    ("engine", "model", "name"),
    [("vllm", "m", "vllm"), ("ollama", None, "ollama"), ("litellm", "anthropic/claude-sonnet-5", "anthropic")],
)
def test_a_provider_is_what_kind_of_server_it_is(engine: Engine, model: str | None, name: str) -> None:
    assert provider(Backend("a", engine=engine, model=model)) == name


def test_operations_have_the_names_of_the_conventions() -> None:
    assert [operation(endpoint.name) for endpoint in (CHAT, COMPLETIONS, EMBEDDINGS)] == [
        "chat", "text_completion", "embeddings"
    ]  # fmt: skip
