"""Held against what vLLM 0.32's own parsers make of the same text. Each difference is listed, with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.inspection.formats import FORMATS
from gateway.inspection.reasoning import REASONING, Thoughts
from tests.inspection.mending import CASES, Mended, mend

# vLLM's answer, ours, and why ours is at least as good.
KEPT = "text after a call is content; vLLM drops it"
SPACE = "white space before a call was sent before the call was known; vLLM strips it where it does not stream"
UNKNOWN = "a tool that was not offered is no call: the client could not run it"
CUT = "arguments that end in the middle are not passed off as whole; the text stays"
WHOLE = "the arguments were complete, only a closing tag was cut; vLLM loses the call"
PROSE = "a marker in prose opens nothing; vLLM loses the text, or makes a call of it"
LOST = "vLLM loses the call or a part of it"
JSON = "arguments are a JSON object; vLLM passes on what is none, or misreads it"
TYPED = "the schema says what the value is; vLLM leaves Python's spelling as a string"
INVALID = "what is no JSON object is no call; vLLM passes it on or loses it"
DIFFERENCES = {
    "hermes/markers_inside_arg": LOST,
    "hermes/unknown_tool": UNKNOWN,
    "hermes/arguments_is_string": JSON,
    "hermes/no_arguments_key": "a tool without required arguments may be called without any",
    "hermes/json_list_in_tag": LOST,
    "qwen3_xml/content_after": KEPT,
    "qwen3_xml/truncated_second": CUT,
    "qwen3_xml/marker_only_in_prose": PROSE,
    "qwen3_xml/missing_close_parameter": LOST,
    "qwen3_xml/object_value_python_style": TYPED,
    "qwen3_xml/close_tag_in_value": LOST,
    "qwen3_coder/content_before": SPACE,
    "qwen3_coder/unknown_tool": UNKNOWN,
    "qwen3_coder/truncated_second": CUT,
    "qwen3_coder/marker_only_in_prose": PROSE,
    "qwen3_coder/hermes_json_body": "another format's call stays text here; with that format armed too it is a call",
    "qwen3_coder/object_value_python_style": TYPED,
    "pythonic/unknown_tool": UNKNOWN,
    "pythonic/truncated_second": LOST,
    "gemma4/content_after": KEPT,
    "gemma4/truncated_60pct": CUT,
    "gemma4/json_args": JSON,
    "deepseek_v3/truncated_85pct": WHOLE,
    "deepseek_v3/no_json_fence": LOST,
    "deepseek_v3/multiline_json": LOST,
    "deepseek_v31/content_after": KEPT,
    "deepseek_v31/truncated_60pct": CUT,
    "deepseek_v31/truncated_85pct": WHOLE,
    "deepseek_v31/multiline_json": LOST,
    "deepseek_v4/truncated_second": CUT,
    "mistral/content_before": SPACE,
    "mistral/content_after": KEPT,
    "mistral/markers_inside_arg": LOST,
    "mistral/unknown_tool": UNKNOWN,
    "mistral/truncated_second": CUT,
    "mistral/marker_only_in_prose": PROSE,
    "mistral/old_json_array": JSON,
    "mistral/old_json_array_two": JSON,
    "mistral/invalid_json_args": INVALID,
    "llama3_json/content_before": "text before a call is content; vLLM drops it",
    "llama3_json/content_after": KEPT,
    "llama3_json/unknown_tool": UNKNOWN,
    "glm45/truncated_85pct": CUT,
    "phi4_mini_json/bracket_in_args": LOST,
}

EDGE = "thoughts arrive while they are thought: a newline at their end is not taken back; vLLM strips it"
ONCE = "an opener counts only at the start: later tags may be prose; vLLM splits again, or loses the tags"
NOTHING = "white space is no thought"
TAG = "the tag is no thought"
MENDED = "thoughts whose tags are there are split off, also where vLLM was told that there are none"
REASONING_DIFFERENCES = {
    "deepseek_r1/empty_think": NOTHING,
    "deepseek_v4/normal": EDGE,
    "deepseek_v4/two_blocks": ONCE,
    "glm45/two_blocks": ONCE,
    "nemotron_v3/normal": EDGE,
    "nemotron_v3/two_blocks": ONCE,
    "kimi_k2/normal": EDGE,
    "minimax_m2/normal": EDGE,
    "minimax_m2/two_blocks": ONCE,
    "mimo/two_blocks": ONCE,
    "step3/normal": TAG,
    "step3/unterminated": TAG,
    "step3/empty_think": TAG,
    "deepseek_v3/normal": MENDED,
    "deepseek_v3/two_blocks": MENDED,
    "minimax_m2_append_think/normal": MENDED,
    "gemma4/no_open_tag": EDGE,
    "mistral/no_open_tag": "a closing tag without an opener can't be taken back; nothing is dropped",
}
TOOL_CASES = [case for case in CASES if case["kind"] == "tool"]
REASONING_CASES = [case for case in CASES if case["kind"] == "reasoning"]


def decoded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def same_calls(case: dict[str, Any], mended: Mended) -> bool:
    expected = case["expected"]
    calls = [(call["name"], decoded(call["arguments"])) for call in expected["tool_calls"]]
    return mended.calls == calls and mended.content == (expected["content"] or "")


@pytest.mark.parametrize("case", TOOL_CASES, ids=[f"{case['parser']}-{case['name']}" for case in TOOL_CASES])
def test_calls_and_content_are_those_of_vllm_but_for_the_listed(case: dict[str, Any]) -> None:
    mended = mend(case["parser"], case["text"])
    assert same_calls(case, mended) == (case["name"] not in DIFFERENCES), (mended.calls, mended.content)


@pytest.mark.parametrize("name", [name for name, why in DIFFERENCES.items() if why in (LOST, WHOLE, JSON, TYPED)])
def test_where_vllm_loses_a_call_it_is_one_here(name: str) -> None:
    (case,) = [case for case in TOOL_CASES if case["name"] == name]
    assert mend(case["parser"], case["text"]).calls


@pytest.mark.parametrize("name", [name for name, why in DIFFERENCES.items() if why in (PROSE, INVALID, UNKNOWN)])
def test_what_is_no_call_stays_text(name: str) -> None:
    (case,) = [case for case in TOOL_CASES if case["name"] == name]
    mended = mend(case["parser"], case["text"])
    assert (mended.content, mended.calls) == (case["text"], [])


def thoughts_of(case: dict[str, Any]) -> Thoughts:
    """Thinking is on where vLLM's parser takes text without an opener for thoughts."""
    name, switches = case["parser"], case.get("ctk", {})
    on = switches.get("thinking", switches.get("enable_thinking", name != "deepseek_v3"))
    thoughts = REASONING[name]
    return thoughts.with_opener_implied() if on and name not in ("mistral", "minimax_m2_append_think") else thoughts


@pytest.mark.parametrize("case", REASONING_CASES, ids=[f"{case['name']}-{case.get('ctk')}" for case in REASONING_CASES])
def test_thoughts_are_those_of_vllm_but_for_the_listed(case: dict[str, Any]) -> None:
    mended = mend("", case["text"], thoughts_of(case))
    expected = case["expected"]
    same = (mended.reasoning, mended.content) == (expected["reasoning"] or "", expected["content"] or "")
    why = REASONING_DIFFERENCES.get(case["name"])
    assert same or why, (mended.reasoning, mended.content)
    if why == EDGE and expected["reasoning"]:
        assert mended.reasoning.rstrip() == expected["reasoning"].rstrip()


def test_every_listed_difference_is_one() -> None:
    differing = {case["name"] for case in REASONING_CASES if not same_thoughts(case)}
    assert differing == set(REASONING_DIFFERENCES)
    assert set(DIFFERENCES) <= {case["name"] for case in TOOL_CASES}
    assert {short(case) for case in FULL_CASES if not same_whole(case)} == set(FULL_DIFFERENCES)


def same_thoughts(case: dict[str, Any]) -> bool:
    mended, expected = mend("", case["text"], thoughts_of(case)), case["expected"]
    return (mended.reasoning, mended.content) == (expected["reasoning"] or "", expected["content"] or "")


FULL_CASES = [case for case in CASES if case["kind"] == "full" and case.get("tool_choice") != "none"]
FULL_DIFFERENCES = {
    "truncated_call": CUT,
    "invalid_json": INVALID,
    "markers_inside_arg": "vLLM drops a `</think>` from the argument",
    "call_inside_think": "a call inside closed thoughts was a draft; some of vLLM's parsers make it",
    "call_inside_unclosed_think": "thoughts that end in a call are over; vLLM's deepseek_r1 loses the call",
    "nested": "numbers and words inside an object are what they look like; vLLM makes strings of them",
}


def short(case: dict[str, Any]) -> str:
    """A case's name without its parser's."""
    return str(case["name"].rpartition("/")[2])


def same_whole(case: dict[str, Any]) -> bool:
    mended = mend(case["parser"], case["text"], REASONING.get(case.get("reasoning_parser") or ""))
    expected = case["expected"]["nonstream"]["tool_calls"]
    return mended.calls == [(call["name"], decoded(call["arguments"])) for call in expected]


@pytest.mark.parametrize("case", FULL_CASES, ids=[f"{case['name']}-{case.get('ctk')}" for case in FULL_CASES])
def test_whole_answers_have_the_calls_that_vllm_finds_but_for_the_listed(case: dict[str, Any]) -> None:
    assert same_whole(case) or short(case) in FULL_DIFFERENCES, case["text"]


def test_parsers_that_share_a_format_share_an_object() -> None:
    assert FORMATS["qwen3_coder"] is FORMATS["qwen3_xml"] is FORMATS["step3p5"]
    assert FORMATS["hermes"] is FORMATS["qwen3_json"]
    assert FORMATS["glm45"] is FORMATS["glm47"]
