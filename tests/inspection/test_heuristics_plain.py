"""Plain answers are recognised, and come out as they come out of the inspection."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.inspection.inspector import Inspector
from gateway.inspection.policy import InspectionPolicy, LazyTools, formats_for
from gateway.inspection.reasoning import REASONING, THINK, Thoughts
from gateway.inspection.whole import WholeAnswer, read_whole
from tests.routing.parts import request

TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
POLICIES = {
    "nothing": None,
    "tools": InspectionPolicy(LazyTools(msgspec.json.encode(TOOLS)), formats_for(None, "hermes"), THINK),
    "a required call": InspectionPolicy(
        LazyTools(msgspec.json.encode(TOOLS)), formats_for(None, "hermes"), THINK, call="required"
    ),
    "thoughts": InspectionPolicy(thoughts=THINK),
    "thoughts without an opener": InspectionPolicy(thoughts=THINK.with_opener_implied()),
    "no thoughts": InspectionPolicy(thoughts=THINK, reasoning_field="none"),
}
PIECES = (
    *("Hello. ", "a", "!!!!!", " ", "\n", "<think>", "</think>", "\n</think>\n", "<tool_call>", "</tool_call>"),
    *(
        '{"name": "now", "arguments": {}}',
        "```",
        "[TOOL_CALLS]",
        "[THINK]",
        "Here is my thought process:",
        "<|channel>",
    ),
    *("<function=now>", "Ünï", "<", "[", '"model"'),
)
texts = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=6).map("".join))
values: st.SearchStrategy[Any] = st.sampled_from([None, "", "x", [], {}, [{"type": "text", "text": "hi"}], 5])
messages = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", None, 7]),
        "content": st.one_of(texts, values),
        "refusal": values,
        "reasoning": values,
        "reasoning_content": values,
        "tool_calls": values,
        "function_call": values,
        "audio": values,
        "annotations": values,
        "other": values,
    },
)
ends = st.sampled_from(["stop", "length", "tool_calls", "repetition", "abort", None, 3])


def result(answer: WholeAnswer) -> dict[str, Any]:
    names = ("failure", "body", "model", "usage", "finished", "disobeyed", "empty", "stray_close", "never_closed")
    return {name: getattr(answer, name) for name in (*names, "violations", "mended")}


@settings(max_examples=400)
@given(messages, ends, st.integers(0, 3000), st.sampled_from(list(POLICIES)), st.sampled_from([None, *REASONING]))
def test_both_lanes_come_to_the_same(message: dict[str, Any], end: Any, spent: int, policy: str, family: Any) -> None:
    choice = {"index": 0, "message": message, "finish_reason": end}
    body = msgspec.json.encode({"model": "m", "choices": [choice], "usage": {"completion_tokens": spent}})
    asked = request(max_tokens=50, tools=TOOLS)
    usual: Thoughts | None = REASONING[family] if family is not None else None
    fast = result(read_whole(body, asked, POLICIES[policy], usual))
    with patch.object(Inspector, "note_plain", lambda *_: False):
        assert result(read_whole(body, asked, POLICIES[policy], usual)) == fast


@pytest.mark.parametrize("policy", ["nothing", "tools", "thoughts"])
def test_plain_text_is_not_inspected(policy: str) -> None:
    said: dict[str, Any] = {
        "role": "assistant",
        "content": "12 * 17 is 204.",
        "refusal": None,
        "tool_calls": [],
        "reasoning": None,
    }
    body = msgspec.json.encode({"model": "m", "choices": [{"message": said, "finish_reason": "stop"}]})
    with patch.object(Inspector, "inspect", side_effect=AssertionError("inspected")):
        answer = read_whole(body, request(), POLICIES[policy], THINK)
    assert (answer.failure, answer.empty, answer.violations) == (None, False, set())
