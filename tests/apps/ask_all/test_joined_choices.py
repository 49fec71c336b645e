"""Answers of several backends joined into one: nothing is lost at any cut, and what is no answer is never one."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.ask_all.joined_choices import LOST, Member, MemberStream, Shared, added, choice_in, error_in
from gateway.domain.endpoints import CHAT

SHARED = Shared(CHAT, "chatcmpl-1", 1700000000, "judges")
MEMBER = Member(3, "qwen32", "Qwen/Qwen3-32B")
NUMBERS = st.integers(0, 10**9)
USAGES = st.dictionaries(
    st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens"]), NUMBERS
) | st.fixed_dictionaries({"prompt_tokens_details": st.dictionaries(st.just("cached_tokens"), NUMBERS)})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def event(*choices: Any, **more: Any) -> bytes:
    body = {"id": "x", "object": "y", "created": 1, "model": "z", "choices": list(choices), **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def stream_of(words: list[str]) -> bytes:
    role = event({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
    said = [event({"index": 0, "delta": {"content": word}, "finish_reason": None}) for word in words]
    end = event({"index": 0, "delta": {}, "finish_reason": "stop"})
    return b"".join([role, b": a comment\n\n", *said, end, event(usage={"total_tokens": 7}), b"data: [DONE]\n\n"])


def chunks(out: bytes) -> list[Any]:
    return [json.loads(part.removeprefix(b"data: ")) for part in out.split(b"\n\n") if part]


@given(st.lists(st.text(max_size=20), max_size=6), st.lists(st.integers(0, 2000), max_size=6))
def test_the_events_are_the_same_at_any_cut(words: list[str], cuts: list[int]) -> None:
    data = stream_of(words)
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    stream = MemberStream(SHARED, MEMBER)
    out = b"".join(stream.feed(data[a:b]) for a, b in pairwise(at))
    assert out == MemberStream(SHARED, MEMBER).feed(data)
    found = chunks(out)
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in found) == "".join(words)
    assert {(c["id"], c["created"], c["model"]) for c in found} == {("chatcmpl-1", 1700000000, "judges")}
    assert {c["choices"][0]["index"] for c in found} == {3}
    assert ["x_gateway" in c for c in (found[0], found[-1])] == [True, True]
    assert (stream.finished, stream.usage, stream.error) == (True, {"total_tokens": 7}, None)


@given(JSON)
def test_no_event_breaks_the_join(value: Any) -> None:
    stream = MemberStream(SHARED, MEMBER)
    stream.feed(b"data: " + json.dumps(value).encode() + b"\n\n")
    stream.feed(event(value))
    stream.feed(event({"delta": value, "finish_reason": value}))
    stream.feed(b"data: {not json\n\n")
    error = chunks(stream.conclude(LOST))[-1]
    assert error["choices"][0]["finish_reason"] == "error"
    assert error["x_gateway"]["choices"][0] == {"backend": "qwen32", "model": "Qwen/Qwen3-32B", "error": LOST}


@given(JSON)
def test_what_is_no_answer_has_no_choice(value: Any) -> None:
    body = json.dumps(value).encode()
    found = choice_in(body, 1)
    assert found is None or isinstance(value["choices"][0], dict)
    assert error_in(body) is None or isinstance(value["error"], dict)


@given(st.lists(USAGES, max_size=5))
def test_usage_is_added_field_by_field(usages: list[dict[str, Any]]) -> None:
    total = added([*usages, None, "no usage", {"prompt_tokens": "many"}])
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert total.get(key, 0) == sum(usage.get(key, 0) for usage in usages)
    cached = [usage.get("prompt_tokens_details", {}).get("cached_tokens", 0) for usage in usages]
    assert total.get("prompt_tokens_details", {}).get("cached_tokens", 0) == sum(cached)
