"""Llama 3: bare JSON objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.inspection.formats.common import JsonFormatTests
from tests.inspection.mending import mend, mender


class TestLlama3Json(JsonFormatTests):
    parser = "llama3_json"
    joint = "; "

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f'{{"name": "{name}", "parameters": {json.dumps(arguments, ensure_ascii=False)}}}'


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
@pytest.mark.parametrize("tag", ["", "<|python_tag|>"])
def test_a_list_of_calls_leaves_nothing_of_itself(indent: Any, tag: str) -> None:
    calls = [{"name": "get_weather", "parameters": {"city": "Oslo"}}, {"name": "ping", "parameters": {}}]
    mended = mend("llama3_json", tag + json.dumps(calls, indent=indent))
    assert (mended.calls, mended.content) == ([("get_weather", {"city": "Oslo"}), ("ping", {})], "")


def test_of_a_list_that_goes_on_with_something_else_the_calls_before_count() -> None:
    text = '[{"name": "ping", "parameters": {}}, {"name": "rm_rf", "parameters": {}}]'
    mended = mend("llama3_json", text)
    assert (mended.calls, mended.content) == ([("ping", {})], ', {"name": "rm_rf", "parameters": {}}]')


def test_a_token_may_stand_before_it_and_lines_inside() -> None:
    text = '<|python_tag|>{\n  "type": "function",\n  "name": "ping",\n  "parameters": {}\n}'
    assert mend("llama3_json", text).calls == [("ping", {})]


def test_json_that_is_an_answer_stays_one() -> None:
    for text in (
        '{"name": "Bob", "age": 3}',
        '{"temperature": 3}',
        '{"name": "ping", "age": ',
        "int main() { return 0; }",
    ):
        assert mend("llama3_json", text).content == text


def test_an_answer_that_names_no_tool_is_not_held_back() -> None:
    given = mender("llama3_json").feed('{"name": "Bob", "cv": "long')
    assert "".join(piece.raw for piece in given) == '{"name": "Bob", "cv": "long'
