"""What vLLM's Rust front end passes on of calls that it could not read, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inspection.answer import ChoiceAnswer, Delta
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.policy import InspectionPolicy, formats_for
from tests.inspection.mending import TOOLS

POLICY = InspectionPolicy(tools=OfferedTools(TOOLS), formats=formats_for(None, "hermes", unopened=True), unread=True)
REST = '"{\\"city\\": \\"Oslo\\"}"}\n</tool_call>'
IN_THOUGHTS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
OLD = "{call}\n</tool_call>"
Seen = tuple[str, str, list[tuple[str, str]], object]


def call(arguments: str = "", name: str = "get_weather") -> list[Delta]:
    """A call as the front end streams it: its name first, then its arguments in pieces."""
    begun = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name}}
    pieces = [{"index": 0, "function": {"arguments": arguments[at : at + 3]}} for at in range(0, len(arguments), 3)]
    return [{"tool_calls": [one]} for one in (begun, *pieces)]


def text(content: str, field: str = "content", size: int = 3) -> list[Delta]:
    return [{field: content[at : at + size]} for at in range(0, len(content), size)]


def numbered(deltas: list[Delta]) -> list[Delta]:
    """The deltas with the index of each call counted up."""
    number, made = -1, []
    for delta in deltas:
        for one in delta.get("tool_calls") or ():
            number += "id" in one
            made.append({"tool_calls": [{**one, "index": number}]})
        if not delta.get("tool_calls"):
            made.append(delta)
    return made


def seen(answer: ChoiceAnswer, deltas: list[Delta], finish: object) -> Seen:
    """(content, thoughts, calls, finish_reason) for the client."""
    out: list[Delta] = []
    for delta in deltas:
        out += answer.delta(delta)
    rest, finish = answer.end(finish)
    content = thoughts = ""
    calls: dict[int, list[str]] = {}
    for delta in out + rest:
        content += delta.get("content") or ""
        thoughts += delta.get("reasoning") or ""
        for one in delta.get("tool_calls") or ():
            known = calls.setdefault(one.get("index", len(calls)), ["", ""])
            known[0] += one["function"].get("name") or ""
            known[1] += one["function"].get("arguments") or ""
    return content, thoughts, [(name, given) for name, given in calls.values()], finish


def streamed(deltas: list[Delta], finish: object = "tool_calls") -> Seen:
    return seen(ChoiceAnswer(POLICY), numbered(deltas), finish)


def whole(deltas: list[Delta], finish: object = "tool_calls") -> Seen:
    """The same as one message, as the front end writes it."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "reasoning": None, "tool_calls": []}
    for delta in deltas:
        for field in ("content", "reasoning"):
            if delta.get(field):
                message[field] = (message[field] or "") + delta[field]
        for one in delta.get("tool_calls") or ():
            if "id" in one:
                made = {name: value for name, value in one.items() if name != "index"}
                message["tool_calls"].append({**made, "function": {**one["function"], "arguments": ""}})
            else:
                message["tool_calls"][-1]["function"]["arguments"] += one["function"]["arguments"]
    if not message["tool_calls"]:
        del message["tool_calls"]
    return seen(ChoiceAnswer(POLICY), [message], finish)


OSLO = [("get_weather", '{"city": "Oslo"}')]
CASES: dict[str, tuple[list[Delta], Seen]] = {
    "arguments as a string": ([*call(), *text(REST)], ("", "", OSLO, "tool_calls")),
    "with text around": (
        [*text("Hi "), *call(), *text(REST + "\nbye")],
        ("Hi \nbye", "", OSLO, "tool_calls"),
    ),
    "and a call behind it": (
        [*call(), *text(REST + IN_THOUGHTS)],
        ("", "", OSLO * 2, "tool_calls"),
    ),
    "null": ([*call(), *text("null}\n</tool_call>")], ("", "", [("get_weather", "{}")], "tool_calls")),
    "a list": (
        [*call(), *text("[1]}\n</tool_call>")],
        ("[1]}\n</tool_call>", "", [("get_weather", "{}")], "tool_calls"),
    ),
    "no arguments": (call(), ("", "", [("get_weather", "{}")], "tool_calls")),
    "a bare word": (call('{"city": Oslo}'), ("", "", OSLO, "tool_calls")),
    "single quotes": (call("{'city': 'Oslo'}"), ("", "", OSLO, "tool_calls")),
    "cut by the model": (call('{"city": "Os'), ("", "", [("get_weather", '{"city": "Os')], "length")),
    "an open brace": ([*call('{"city": "Oslo"}'), *text("\n</tool_call>")], ("", "", OSLO, "tool_calls")),
    "a brace too many": ([*call('{"city": "Oslo"}'), *text("}}\n</tool_call>")], ("", "", OSLO, "tool_calls")),
    "no closing tag": ([*call('{"city": "Oslo"}'), *text("}")], ("", "", OSLO, "tool_calls")),
    "a newline between calls": (
        [*call('{"city": "Oslo"}'), *text("\n"), *call('{"city": "Rome"}')],
        ("", "", [*OSLO, ("get_weather", '{"city": "Rome"}')], "tool_calls"),
    ),
    "text behind a call": (
        [*call('{"city": "Oslo"}'), *text("\nDone and said.")],
        ("\nDone and said.", "", OSLO, "tool_calls"),
    ),
    "a call and an example of one": (
        [*text("So:\n```\n" + OLD + "\n```\n"), *call('{"city": "Oslo"}')],
        ("So:\n```\n" + OLD + "\n```\n", "", OSLO, "tool_calls"),
    ),
    "in unclosed thoughts": ([*text("I call " + IN_THOUGHTS, "reasoning")], ("", "I call ", OSLO, "tool_calls")),
    "a draft in closed thoughts": (
        [*text("I call " + IN_THOUGHTS, "reasoning"), *text("ok")],
        ("ok", "I call " + IN_THOUGHTS, [], "stop"),
    ),
    "a draft and then a call": (
        [*text(IN_THOUGHTS, "reasoning"), *call('{"city": "Oslo"}')],
        ("", IN_THOUGHTS, OSLO, "tool_calls"),
    ),
    "thoughts that go on": (
        [*text(IN_THOUGHTS + " or not", "reasoning")],
        ("", IN_THOUGHTS + " or not", [], "stop"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_mended_streamed_and_whole_alike(name: str) -> None:
    deltas, wanted = CASES[name]
    given = "tool_calls" if any(delta.get("tool_calls") for delta in deltas) else "stop"
    wanted_calls = [(called, given_) for called, given_ in wanted[2]]
    for found in (streamed(deltas, given), whole(deltas, given)):
        assert (found[0], found[1], found[3]) == (wanted[0], wanted[1], wanted[3])
        assert [(called, readable(given_)) for called, given_ in found[2]] == [
            (called, readable(given_)) for called, given_ in wanted_calls
        ]


def readable(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def test_a_good_call_is_passed_on_piece_by_piece() -> None:
    answer = ChoiceAnswer(POLICY)
    for delta in call('{"city": "Oslo"}'):
        (passed,) = answer.delta(delta)
        assert passed is delta
    assert answer.end("tool_calls") == ([], "tool_calls")
    assert not answer.mended


def test_a_call_that_a_limit_cut_before_its_arguments_gets_none() -> None:
    assert streamed(call(), "length") == ("", "", [("get_weather", "")], "length")


def test_calls_in_thoughts_that_a_limit_cut_are_drafts() -> None:
    deltas = text("I call " + IN_THOUGHTS, "reasoning")
    assert streamed(deltas, "length") == whole(deltas, "length") == ("", "I call " + IN_THOUGHTS, [], "length")


@given(st.text(max_size=40), st.text(alphabet='{}"\n </tool_call>null', max_size=30))
def test_no_prose_is_lost_around_a_good_call(before: str, behind: str) -> None:
    deltas = [*text(before), *call('{"city": "Oslo"}'), *text(behind)]
    content, _, calls, _ = streamed(deltas)
    assert calls[:1] == OSLO
    kept = behind.removesuffix("\n").strip() if behind.strip("} \n") else ""
    assert content.startswith(before)
    if "</tool_call>" not in behind and "{" not in behind:
        assert content.removeprefix(before).strip() == kept
