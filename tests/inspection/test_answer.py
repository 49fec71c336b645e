"""One choice of an answer: what becomes of its deltas, and what is found wrong with it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.endpoints import CHAT
from gateway.domain.request import InferenceRequest
from gateway.inspection.answer import ChoiceAnswer, Delta
from gateway.inspection.formats import FORMATS
from gateway.inspection.inspector import Inspector
from gateway.inspection.mender import OfferedTools
from gateway.inspection.policy import CACHED_MOST, InspectionPolicy, LazyTools
from gateway.inspection.reasoning import REASONING, THINK


def tool(name: str, *required: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {k: {"type": v} for k, v in properties.items()}, "required": [*required]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("get_weather", "city", city="string"), tool("now")]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def expected(**more: Any) -> InspectionPolicy:
    return InspectionPolicy(tools=OfferedTools(TOOLS), formats=(FORMATS["hermes"],), thoughts=THINK, **more)


def is_plain(message: Delta, finish: str, policy: InspectionPolicy) -> bool:
    return Inspector(InferenceRequest(CHAT, {}, "alias"), policy).note_plain(message, finish)


def native(name: str, arguments: str, index: int = 0) -> Delta:
    call = {"index": index, "id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [call]}


def said(deltas: list[Delta], key: str = "content") -> str:
    return "".join(delta.get(key) or "" for delta in deltas)


def calls(deltas: list[Delta]) -> list[tuple[int, str, Any]]:
    """(index, name, arguments) of calls that came whole."""
    found = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    return [(c["index"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in found]


def played(answer: ChoiceAnswer, *deltas: Delta, finish: str = "stop", cut: bool = False) -> tuple[list[Delta], object]:
    out = [made for delta in deltas for made in answer.delta(delta)]
    rest, finish_reason = answer.end(finish, cut=cut)
    return out + rest, finish_reason


def test_a_delta_that_needs_no_change_is_the_same_object() -> None:
    answer = ChoiceAnswer(expected())
    for delta in ({"role": "assistant", "content": ""}, {"content": "Hello "}, {"content": "you"}, {"reasoning": "hm"}):
        out = answer.delta(delta)
        assert len(out) == 1
        assert out[0] is delta
    assert answer.end("stop") == ([], "stop")
    assert not answer.violations
    assert not answer.mended


@given(st.lists(st.integers(0, len(CALL) + 20), max_size=8))
def test_a_call_in_the_text_becomes_a_call_however_it_is_cut(cuts: list[int]) -> None:
    text = f"I look.\n{CALL}"
    places = [0, *sorted(cuts), len(text)]
    pieces = [{"content": text[a:b]} for a, b in pairwise(places) if text[a:b]]
    answer = ChoiceAnswer(expected())
    out, finish = played(answer, *pieces)
    assert said(out).strip() == "I look."
    assert calls(out) == [(0, "get_weather", {"city": "Oslo"})]
    assert finish == "tool_calls"
    assert answer.violations == {"tool_call_as_text"}
    assert answer.mended == {"tool_calls"}


ALL = tuple(FORMATS.values())
SHREDS = [part for f in ALL for mark in f.markers for part in (mark, mark[:-1], mark[1:])]
SHREDS += [CALL, "<think>", "</think>", "hm", "\n", " ", "`", "```\n", '"', "get_weather", "now()", "{", "}", "]"]


@settings(deadline=None)  # the patterns of all formats are compiled once
@given(
    st.lists(st.sampled_from(SHREDS), max_size=6).map("".join),
    st.sampled_from(ALL) | st.none(),
    st.sampled_from([None, *dict.fromkeys(REASONING.values())]),
    st.sampled_from(["stop", "length", "tool_calls"]),
)
def test_a_text_that_is_told_to_be_plain_is_found_to_be_so(text: str, format_: Any, thoughts: Any, end: str) -> None:
    expects = InspectionPolicy(
        tools=OfferedTools(TOOLS), formats=ALL if format_ is None else (format_,), thoughts=thoughts
    )
    message: dict[str, Any] = {"role": "assistant", "content": text, "reasoning": None, "tool_calls": []}
    if not is_plain(message, end, expects):
        return
    answer = ChoiceAnswer(expects)
    deltas, finish = played(answer, message, finish=end)
    assert (said(deltas), finish, answer.violations, answer.mended) == (text, end, set(), set())


def test_plain_text_is_told_from_what_has_to_be_looked_at() -> None:
    assert is_plain({"role": "assistant", "content": "It is 12 < 17, and [so] on."}, "stop", expected())
    assert is_plain({"content": "a first part", "reasoning": None, "tool_calls": []}, "length", expected())
    for message in ({"content": CALL}, {"content": "<think>a</think>b"}, {"content": "x", "reasoning": "hm"}, {}):
        assert not is_plain(message, "stop", expected())
    assert not is_plain({"content": "no"}, "tool_calls", expected())
    assert not is_plain({"content": "no", **native("now", "{}")}, "stop", expected())
    assert not is_plain({"content": "no"}, "stop", expected(call="required"))
    assert not is_plain({"content": "no"}, "stop", InspectionPolicy(thoughts=THINK.with_opener_implied()))


def test_the_ids_of_calls_are_new_and_look_as_clients_expect() -> None:
    out, _ = played(ChoiceAnswer(expected()), {"content": CALL + CALL})
    ids = [call["id"] for delta in out for call in delta["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(i) == 29 and i.startswith("call_") and int(i[5:], 16) >= 0 for i in ids)


def test_indexes_go_on_after_those_of_upstream() -> None:
    answer = ChoiceAnswer(expected())
    out, _ = played(answer, native("now", '{"a":1}'), {"content": CALL}, native("now", '{"a":1}', 1))
    assert [index for index, *_ in calls(out)] == [0, 1, 2]


def test_thoughts_in_the_text_get_their_own_field() -> None:
    answer = ChoiceAnswer(InspectionPolicy(thoughts=THINK))
    out, finish = played(answer, {"content": "<thi"}, {"content": "nk>hm</think>"}, {"content": "\n\nyes"})
    assert (said(out, "reasoning"), said(out).strip(), finish) == ("hm", "yes", "stop")
    assert (answer.violations, answer.mended) == ({"reasoning_as_text"}, {"reasoning"})


def test_thoughts_that_come_later_stay_and_are_counted() -> None:
    answer = ChoiceAnswer(expected())
    said_twice = "<think>a</think>Yes.\n<think>\nb\n</think>\nNo."
    out, _ = played(answer, {"content": said_twice})
    assert (said(out, "reasoning"), said(out)) == ("a", said_twice.removeprefix("<think>a</think>"))
    answer = ChoiceAnswer(expected())
    played(answer, {"content": "Yes.\n<think>\nb\n</think>\nNo."})
    assert answer.violations == {"reasoning_as_text"}
    assert not answer.mended


def test_thoughts_that_never_end_were_none_where_the_opener_was_only_guessed() -> None:
    answer = ChoiceAnswer(InspectionPolicy(thoughts=THINK.with_opener_implied()))
    out, _ = played(answer, {"content": "The answer "}, {"content": "is 4."})
    assert said(out) == "The answer is 4."
    assert answer.never_closed


@pytest.mark.parametrize("together", [True, False])
def test_no_opener_is_guessed_where_thoughts_came_in_their_own_field(together: bool) -> None:
    answer = ChoiceAnswer(InspectionPolicy(thoughts=THINK.with_opener_implied()))
    message = {"reasoning": "Hm.", "content": "It is 4."}
    out, _ = played(answer, message) if together else played(answer, *({key: message[key]} for key in message))
    assert (said(out, "reasoning"), said(out)) == ("Hm.", "It is 4.")
    assert answer.never_closed
    assert not answer.mended


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ('{"city": "Oslo"}', None),
        ("{}", "missing_arguments"),
        ('{"city": "Os', "arguments_not_json"),
        ("[]", "arguments_not_json"),
    ],
)
def test_upstreams_own_calls_are_checked(arguments: str, kind: str | None) -> None:
    answer = ChoiceAnswer(expected())
    parts = [
        native("get_weather", ""),
        *({"tool_calls": [{"index": 0, "function": {"arguments": c}}]} for c in arguments),
    ]
    out, finish = played(answer, *parts, finish="tool_calls")
    assert out == parts
    assert finish == "tool_calls"
    assert answer.violations == ({kind} if kind else set())


def test_a_tool_that_was_not_offered_is_counted_and_passed_on() -> None:
    answer = ChoiceAnswer(expected())
    out, _ = played(answer, native("rm_rf", '{"path":"/"}'), finish="tool_calls")
    assert calls(out) == [(0, "rm_rf", {"path": "/"})]
    assert answer.violations == {"unknown_tool"}


@pytest.mark.parametrize(
    ("deltas", "given", "cut", "becomes"),
    [
        ([native("now", "{}")], "stop", False, "tool_calls"),  # vLLM, named choice
        ([{"content": "no"}], "tool_calls", False, "stop"),  # vLLM, required with nothing
        ([native("get_weather", '{"ci')], "tool_calls", True, "length"),  # vLLM without stream, cut by max_tokens
        ([native("get_weather", '{"city": "Oslo"}')], "tool_calls", True, "tool_calls"),
        ([native("now", "{}")], "length", False, "length"),
        ([{"content": "no"}], "length", False, "length"),
        ([{"content": "no"}], "repetition", False, "stop"),
    ],
)
def test_the_finish_reason_says_what_happened(deltas: list[Delta], given: str, cut: bool, becomes: str) -> None:
    assert played(ChoiceAnswer(expected()), *deltas, finish=given, cut=cut)[1] == becomes


@pytest.mark.parametrize(
    ("choice", "delta", "obeyed"),
    [
        ({"call": "required"}, native("now", "{}"), True),
        ({"call": "required"}, {"content": CALL}, True),
        ({"call": "required"}, {"content": "no"}, False),
        ({"call": "named", "name": "get_weather"}, native("now", "{}"), False),
        ({"call": "named", "name": "get_weather"}, {"content": CALL}, True),
        ({"call": "auto"}, {"content": "no"}, True),
    ],
)
def test_a_choice_that_must_call_is_verified(choice: dict[str, Any], delta: Delta, obeyed: bool) -> None:
    answer = ChoiceAnswer(expected(**choice))
    played(answer, delta)
    assert answer.obeyed is obeyed
    assert ("tool_choice_ignored" in answer.violations) is not obeyed


def test_thoughts_cut_off_with_nothing_said_are_counted() -> None:
    answer = ChoiceAnswer(expected())
    played(answer, {"reasoning": "hm"}, finish="length")
    assert answer.violations == {"reasoning_cut"}


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("as_is", {"reasoning_content"}),
        ("both", {"reasoning", "reasoning_content"}),
        ("reasoning", {"reasoning"}),
        ("reasoning_content", {"reasoning_content"}),
        ("none", set()),
    ],
)
def test_thoughts_go_out_under_the_name_the_alias_wants(field: Any, names: set[str]) -> None:
    answer = ChoiceAnswer(InspectionPolicy(reasoning_field=field))
    [delta] = answer.delta({"content": "x", "reasoning_content": "hm"})
    assert {name for name in delta if name.startswith("reasoning")} == names
    assert all(delta[name] == "hm" for name in names)


def test_tools_are_read_when_they_are_asked_for() -> None:
    assert LazyTools(json.dumps(TOOLS).encode()).required("get_weather") == {"city"}
    assert not LazyTools(b"[{").has("now")  # what is no JSON offers nothing
    large = LazyTools(json.dumps([*TOOLS, tool("x" * CACHED_MOST)]).encode())
    assert large.has("now")
    assert large


def test_the_line_behind_a_line_end_may_begin_with_a_tag_of_thoughts() -> None:
    """Calls of this notation begin with no "<", so that only the tags do."""
    policy = InspectionPolicy(tools=OfferedTools(TOOLS), formats=(FORMATS["mistral"],), thoughts=THINK)
    answer = ChoiceAnswer(policy)
    answer.text("A line that is past where a tag may begin")
    for text in (", and", " goes", " on"):
        assert answer.passes(text)
    assert not answer.passes("\n")
    assert answer.passes(" to its end")
    answer.text("\n")
    assert not answer.passes("<think>")
    answer.text("Another line that is past where a tag may begin")
    assert answer.passes(" <think>")
