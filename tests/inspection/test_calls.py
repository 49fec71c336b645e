"""The calls that a backend sends as calls: their numbers and ids, whatever it says of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inspection.arguments import is_object
from gateway.inspection.calls import ToolCalls, mended_whole
from gateway.inspection.offered_tools import OfferedTools

TOOLS = OfferedTools([{"name": "f"}, {"name": "g"}])


def part(name: str | None, arguments: str, **more: Any) -> dict[str, Any]:
    return {**more, "function": {"arguments": arguments} | ({} if name is None else {"name": name})}


def test_a_part_belongs_to_the_call_with_its_index() -> None:
    calls = ToolCalls()
    parts = [
        part("f", "", index=0, id="a"),
        part(None, '{"x":', index=0),
        part("g", '{"y":1}', index=1, id="b"),
        part(None, "1}", index=0, id="a"),
    ]
    assert not any(calls.note([one]) for one in parts)
    violations: set[str] = set()
    assert calls.judge(TOOLS, violations, cut=False)
    assert not violations


@pytest.mark.parametrize("numbered", [{"index": 0}, {}, {"index": None}, {"index": "0"}])
def test_calls_with_the_same_index_are_told_apart_by_their_ids(numbered: dict[str, Any]) -> None:
    calls, first, second = ToolCalls(), part("f", "{}", id="a", **numbered), part("g", "{}", id="b", **numbered)
    more = part(None, " ", **numbered)
    calls.note([first])
    assert calls.note([second])
    calls.note([more])
    assert [one.get("index", 0) for one in (first, second, more)] == [0, 1, 1]
    violations: set[str] = set()
    calls.judge(TOOLS, violations, cut=False)
    assert not violations


@pytest.mark.parametrize("whole", [False, True])
def test_arguments_as_an_object_are_written_as_text(whole: bool) -> None:
    calls = ToolCalls(whole=whole)
    one = {"id": "a", "function": {"name": "f", "arguments": {"x": 1, "y": "ü"}}}
    assert calls.note([one])
    assert one["function"]["arguments"] == '{"x":1,"y":"ü"}'  # type: ignore[index]  # a mapping of anything
    violations: set[str] = set()
    calls.judge(TOOLS, violations, cut=False)
    assert not violations


@pytest.mark.parametrize("id_", [{}, {"id": None}, {"id": ""}])
def test_a_call_without_an_id_gets_one(id_: dict[str, Any]) -> None:
    calls, one, other = ToolCalls(), part("f", "{}", index=0, **id_), part("g", "{}", index=1, **id_)
    assert calls.note([one, other])
    assert one["id"].startswith("call_")
    assert one["id"] != other["id"]


def test_a_name_that_comes_in_parts_is_one_name() -> None:
    calls = ToolCalls()
    calls.note([part("look", "", index=0, id="a")])
    calls.note([part("_up", "{}", index=0, id="a")])
    calls.note([part("_now", "", index=0)])
    assert calls.first == "look_up_now"


def test_parts_without_an_index_go_on_with_the_latest_call() -> None:
    calls = ToolCalls()
    first: list[Any] = [{"id": "a", "function": {"name": "look", "arguments": ""}}]
    both: list[Any] = [
        {"function": {"arguments": '{"x":1}'}},
        {"id": "b", "function": {"name": "look", "arguments": '{"y":1}'}},
    ]
    assert calls.note(first)
    assert calls.note(both)
    assert [one["index"] for one in (*first, *both)] == [0, 0, 1]
    assert [call.text() for call in calls._calls] == ['{"x":1}', '{"y":1}']


def test_arguments_that_are_repeated_come_once() -> None:
    calls, again = ToolCalls(), [part("", '{"x":1}', index=0)]
    calls.note([part("look", '{"x"', index=0, id="a")])
    calls.note([part("", ":1}", index=0)])
    assert calls.note(again)
    assert again[0]["function"]["arguments"] == ""
    assert not calls.add_piece(0, b"more")
    whole = [part("look", '{"x":1}{"x":1}', index=1, id="b")]
    assert calls.note(whole)
    assert whole[0]["function"]["arguments"] == '{"x":1}'


def test_braces_inside_of_arguments_are_no_repetition() -> None:
    calls = ToolCalls()
    calls.note([part("look", '{"code":"f() {}', index=0, id="a")])
    assert not calls.note([part("", '{}"}', index=0)])
    assert calls._calls[0].text() == '{"code":"f() {}{}"}'


@pytest.mark.parametrize("name", ["look<|channel|>commentary", "functions.look", "functions.look<|constrain|>json"])
def test_a_name_loses_the_marks_of_channels(name: str) -> None:
    calls, named = ToolCalls(), [part(name, '{"x":1}', index=0, id="a")]
    assert calls.note(named, OfferedTools([{"function": {"name": "look"}}]))
    assert named[0]["function"]["name"] == calls.first == "look"
    unknown = [part(name, '{"x":1}', index=0, id="b")]
    assert not ToolCalls().note(unknown, OfferedTools([{"function": {"name": "other"}}]))


PIECE = st.sampled_from(
    ['{"city"', ': "Oslo"', "}", "\n```", "json\n", "get", "_weather", "<", ",", " ", '"', "{", "[1", "]", "`", "null"]
)


@given(st.lists(PIECE, max_size=8))
def test_what_is_passed_on_is_what_came_once_or_an_object(pieces: list[str]) -> None:
    calls, sent = ToolCalls(), ""
    calls.note([{"index": 0, "id": "a", "function": {"name": "f"}}])
    for piece in pieces:
        parts: list[Any] = [{"index": 0, "function": {"arguments": piece}}]
        calls.note(parts)
        sent += parts[0]["function"]["arguments"]
    sent += "".join(part["function"]["arguments"] for part in calls.finish(cut=False))
    came = "".join(pieces)
    assert sent == came or is_object(sent)


@pytest.mark.parametrize("stated", ["get_weather\n```json\n{}\n```", " get_weather ```{}```"])
def test_a_call_of_deepseek_v3_that_a_later_parser_has_read_gets_its_name(stated: str) -> None:
    function = {"name": "function", "arguments": stated}
    (made,) = mended_whole([{"id": "a", "type": "function", "function": function}])
    assert made["function"] == {"name": "get_weather", "arguments": "{}"}
    (other,) = mended_whole([{"id": "a", "type": "function", "function": {**function, "arguments": '{"a": 1}'}}])
    assert other["function"]["name"] == "function"
