"""Held against what the parsers of vLLM's Rust front end (0.33) make of the texts of the oracle: what they leave is
mended to what the text says. Each difference is listed, with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.inspection.answer import ChoiceAnswer, Delta
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.policy import InspectionPolicy, formats_for
from tests.inspection.mending import ORACLE, TOOLS, mend
from tests.inspection.test_unread_calls import Seen, seen

CASES: dict[str, dict[str, Any]] = {
    case["name"]: case for case in map(json.loads, (ORACLE / "rust.jsonl").read_text().splitlines())
}

SPECIAL = (
    "the tokenizer of the test takes the markers of other formats for special tokens, which are left out of the text"
)
SENT = "the front end has sent it as a call, so no text is left that could be kept"
CUT = "the call that the model cut short has been sent as one: it stays, and the answer ends with `length`"
REPAIRED = "arguments that came as a call's are mended; in text they are no call"
OTHER = "another format's call is found too, because this format is not the only one that is looked for"
SECTION = "the front end leaves out what stands in a second section of calls"
KEPT = "an argument that no tool declares came as the text in which it was written"
TAKEN = "more than the opening tag was taken away"
DIFFERENCES = {
    "hermes/markers_inside_arg": SPECIAL,
    "hermes/unknown_tool": SENT,
    "hermes/truncated_60pct": CUT,
    "hermes/truncated_85pct": "the arguments are whole, only the call's brace is missing",
    "hermes/trailing_comma": REPAIRED,
    "hermes/invalid_json_unquoted": REPAIRED,
    "qwen3_coder/markers_inside_arg": SPECIAL,
    "qwen3_coder/unknown_tool": SENT,
    "qwen3_coder/hermes_json_body": OTHER,
    "deepseek_v31/truncated_60pct": CUT,
    "deepseek_v3/no_json_fence": TAKEN,
    "llama3_json/markers_inside_arg": SPECIAL,
    "llama3_json/unknown_tool": SENT,
    "llama3_json/truncated_60pct": CUT,
    "minimax_m2/text-markers": SPECIAL,
    "minimax_m2/unknown": SENT,
    "minimax_m2/twice": SECTION,
    "kimi_k2/unknown": SENT,
    "kimi_k2/cut-7": CUT,
    "kimi_k2/cut-9": CUT,
    "kimi_k2/cut-11": CUT,
    "kimi_k2/cut-17": CUT,
    "kimi_k2/twice": SECTION,
    "glm47/text-markers": SPECIAL,
    "deepseek_v4/unknown": SENT,
    "deepseek_v4/twice": SECTION,
    **{
        f"deepseek_v4/tool_calls-wrap-{how}": KEPT
        for how in ("odd-arguments", "two-arguments", "odd-input", "two-input")
    },
    **{f"deepseek_v4/tool_calls-wrap-{how}-args": KEPT for how in ("obj", "none", "odd", "two")},
    "deepseek_v4/tool_calls-noclose": "the front end has taken the next argument into one that is not closed",
    "gemma4/unknown": SENT,
    "gemma4/json_args": "the front end has taken the quotes of JSON into keys and values",
}


def answered(case: dict[str, Any], *, whole: bool) -> Seen:
    """What the client sees of the front end's answer to this text."""
    formats = formats_for(None, case["parser"], unopened=True)
    policy = InspectionPolicy(tools=OfferedTools(TOOLS), formats=formats, unread=True)
    deltas = [message_of(case["deltas"])] if whole else [delta_of(part) for part in case["deltas"]]
    return seen(ChoiceAnswer(policy), deltas, case["finish"])


def delta_of(part: Any) -> Delta:
    if isinstance(part, str):
        return {"content": part}
    index, name, arguments = part
    call: dict[str, Any] = {"index": index, "function": {"arguments": arguments or ""}}
    if name is not None:
        call |= {"id": f"c{index}", "function": {"name": name, "arguments": arguments or ""}}
    return {"tool_calls": [call]}


def message_of(parts: list[Any]) -> Delta:
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        if not isinstance(part, str):
            function = calls.setdefault(part[0], {"name": part[1], "arguments": ""})
            function["arguments"] += part[2] or ""
    message: Delta = {"role": "assistant", "content": "".join(p for p in parts if isinstance(p, str)) or None}
    if calls:
        made = [{"id": f"c{index}", "type": "function", "function": function} for index, function in calls.items()]
        message["tool_calls"] = made
    return message


def decoded(found: Seen) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in found[2]]


@pytest.mark.parametrize("name", CASES)
def test_what_its_parsers_leave_is_mended(name: str) -> None:
    case = CASES[name]
    streamed, whole = answered(case, whole=False), answered(case, whole=True)
    assert (streamed[2:], streamed[0].strip()) == (whole[2:], whole[0].strip())
    meant = mend(case["parser"], case["text"]).calls
    same = [json.loads(json.dumps(call)) for call in meant] == [
        json.loads(json.dumps(call)) for call in found_calls(streamed)
    ]
    assert same == (name not in DIFFERENCES)


def found_calls(found: Seen) -> list[tuple[str, Any]]:
    try:
        return decoded(found)
    except ValueError:
        return [("no JSON", arguments) for _, arguments in found[2]]


def test_every_difference_is_of_a_case() -> None:
    assert set(DIFFERENCES) <= CASES.keys()


def test_a_finished_call_has_json_for_arguments() -> None:
    for case in CASES.values():
        found = answered(case, whole=False)
        if found[3] == "tool_calls":
            assert all(isinstance(arguments, dict) for _, arguments in decoded(found)), case["name"]
