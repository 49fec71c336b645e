"""Which backends serve the same model, and the request that continues a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.config.load import load_text
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT
from gateway.domain.health_machine import Health
from gateway.domain.request import InferenceRequest, parse
from gateway.inspection.sent_text import SentText
from gateway.routing.resume import BrokenStream, can_resume, continuation, same_model


def event(delta: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return b"data: " + json.dumps({"id": "x", "choices": [choice], **more}).encode() + b"\n\n"


def sent(*texts: str, count: Callable[[int], object] = id) -> SentText:
    found = SentText(count)
    found.add(event({"role": "assistant", "content": ""}))
    for text in texts:
        found.add(event({"content": text}))
    return found


def asking(**fields: Any) -> InferenceRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse(CHAT, json.dumps(body).encode())


def continued(text: SentText, **fields: Any) -> tuple[dict[str, Any], str]:
    """(the fields of the request that continues the text, what the model will write again)."""
    request = asking(**fields)
    found = continuation(request, BrokenStream(request.fields, text))
    return {name: msgspec.json.decode(raw) for name, raw in found.request.fields.items()}, found.repeated


def test_the_text_becomes_the_last_message_and_the_rest_stays() -> None:
    fields, repeated = continued(sent("Hel", "lo \u00e9 "), max_tokens=10, seed=3)
    assert fields["messages"][1] == {"role": "assistant", "content": "Hello \u00e9 "}
    assert (fields["max_tokens"], fields["seed"], repeated) == (8, 3, "")


@pytest.mark.parametrize("messages", [None, [], "hi"])
def test_without_messages_there_is_nothing_to_continue(messages: object) -> None:
    fields = dict(asking().fields)
    del fields["messages"]
    if messages is not None:
        fields["messages"] = msgspec.Raw(msgspec.json.encode(messages))
    assert can_resume(BrokenStream(asking().fields, sent("Hello")), suspected=False)
    assert not can_resume(BrokenStream(fields, sent("Hello")), suspected=False)


def test_line_breaks_at_the_end_are_written_again() -> None:
    fields, repeated = continued(sent("a", ":\n", "\n", "  "), max_tokens=10)
    assert fields["messages"][1]["content"] == "a:"
    assert (fields["max_tokens"], repeated) == (8, "\n\n  ")


def test_the_engines_own_count_is_used_where_it_is_known() -> None:
    found = SentText(id)
    found.add(event({"content": "Hello"}, usage={"prompt_tokens": 5, "completion_tokens": 4}))
    assert (found.tokens, found.prompt) == (4, 5)


LOADS = "launch: {command: 'vllm serve %s --served-model-name m'}"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("model: m", "model: m", True),
        ("model: m", "model: M", False),
        ("model: m", "context: 4096", False),  # not known yet
        (LOADS % "x/one", LOADS % "x/one", True),
        (LOADS % "x/one", LOADS % "x/two", False),
        (f"model: m, {LOADS % 'x/one'}", "model: m", True),
    ],
)
def test_the_same_model_is_the_same_checkpoint(one: str, other: str, same: bool) -> None:
    backends = f"{{a: {{url: 'http://127.0.0.1:1', {one}}}, b: {{url: 'http://127.0.0.1:2', {other}}}}}"
    snapshot = load_text(f"backends: {backends}", "routes.yaml", {}).snapshot
    a, b = (BackendState(snapshot.backends[name], None, Health(name, snapshot.backends[name].health)) for name in "ab")
    assert same_model(a, b) is same
