"""Hermes: a JSON object in a tag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import JsonFormatTests
from tests.inspection.mending import mend


class TestHermes(JsonFormatTests):
    parser = "hermes"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return (
            f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'
        )


def test_a_closing_tag_may_be_missing() -> None:
    call = '<tool_call>{"name": "ping", "arguments": {}}'
    assert mend("hermes", call).calls == [("ping", {})]
    assert mend("hermes", call + "\n" + call).calls == [("ping", {}), ("ping", {})]


def test_arguments_as_a_json_string_are_unpacked() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>'
    assert mend("hermes", text).calls == [("get_weather", {"city": "Oslo"})]


def test_a_list_of_calls_in_one_tag() -> None:
    text = (
        '<tool_call>[{"name": "ping"}, {"type": "function", "function": {"name": "ping", "arguments": {}}}]</tool_call>'
    )
    assert mend("hermes", text).calls == [("ping", {}), ("ping", {})]


def test_missing_arguments_are_no_call_where_some_are_required() -> None:
    text = '<tool_call>{"name": "get_weather"}</tool_call>'
    assert mend("hermes", text).content == text


def test_a_broken_call_does_not_hide_the_next_one() -> None:
    broken = '<tool_call>{"name": "get_weather", "arguments": {"cit\n'
    good = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    mended = mend("hermes", broken + good)
    assert (mended.content, mended.calls) == (broken, [("ping", {})])


def test_the_other_tag_of_longcat() -> None:
    text = '<longcat_tool_call>{"name": "ping", "arguments": {}}</longcat_tool_call>'
    assert mend("longcat", text).calls == [("ping", {})]
