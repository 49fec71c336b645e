"""DeepSeekV4: arguments in tags with a prefix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.inspection.formats.common import FormatTests
from tests.inspection.mending import mend


class TestDeepSeekV4(FormatTests):
    parser = "deepseek_v4"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        def part(key: str, value: Any) -> str:
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, ensure_ascii=False)
            return f'<｜DSML｜parameter name="{key}" string="{str(is_text).lower()}">{text}</｜DSML｜parameter>\n'

        parts = "".join(part(key, value) for key, value in arguments.items())
        invoke = f'<｜DSML｜invoke name="{name}">\n{parts}</｜DSML｜invoke>'
        return f"<｜DSML｜tool_calls>\n{invoke}\n</｜DSML｜tool_calls>"


def test_the_wrapper_may_be_missing_and_types_come_from_the_schema() -> None:
    city = '<｜DSML｜parameter name="city">007</｜DSML｜parameter>'
    days = '<｜DSML｜parameter name="days">3</｜DSML｜parameter>'
    text = f'<｜DSML｜invoke name="get_weather">{city}{days}</｜DSML｜invoke>'
    assert mend("deepseek_v4", text).calls == [("get_weather", {"city": "007", "days": 3})]


def test_the_calls_before_a_broken_one_count() -> None:
    ping = '<｜DSML｜invoke name="ping"></｜DSML｜invoke>'
    rest = '\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜para'
    mended = mend("deepseek_v4", "<｜DSML｜tool_calls>" + ping + ping + rest)
    assert (mended.calls, mended.content) == ([("ping", {}), ("ping", {})], rest)


def test_a_blank_before_every_name_in_4_1() -> None:
    ping = '<｜DSML｜ calls>\n<｜DSML｜ invoke name="ping">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>'
    assert mend("deepseek_v41", ping).calls == [("ping", {})]


def invoke(*parameters: str, name: str = "get_weather") -> str:
    return f'<｜DSML｜invoke name="{name}">\n{"".join(parameters)}</｜DSML｜invoke>'


def parameter(key: str, text: str, word: str = "") -> str:
    return f'<｜DSML｜parameter name="{key}"{word}>{text}</｜DSML｜parameter>\n'


TRUE, FALSE = ' string="true"', ' string="false"'


@pytest.mark.parametrize("word", ["", TRUE, FALSE])
def test_the_schema_decides_whatever_the_model_says_of_a_text(word: str) -> None:
    found = mend("deepseek_v4", invoke(parameter("city", "7", word), parameter("days", "3", word))).calls
    assert found == [("get_weather", {"city": "7", "days": 3})]


@pytest.mark.parametrize(("word", "value"), [("", "3"), (TRUE, "3"), (FALSE, 3)])
def test_the_models_word_decides_where_the_schema_says_nothing(word: str, value: Any) -> None:
    found = mend("deepseek_v4", invoke(parameter("note", "3", word), parameter("city", "x"))).calls
    assert found == [("get_weather", {"note": value, "city": "x"})]


@pytest.mark.parametrize("tag", ["tool_calls", "toolcalls", "tool"])
@pytest.mark.parametrize("end", ["tool_calls", "toolcalls", "tool"])
def test_the_wrapper_has_other_names_at_times(tag: str, end: str) -> None:
    text = f"<｜DSML｜{tag}>\n{invoke(parameter('city', 'Oslo'))}\n</｜DSML｜{end}>"
    mended = mend("deepseek_v4", text)
    assert (mended.calls, mended.content) == ([("get_weather", {"city": "Oslo"})], "")


@pytest.mark.parametrize("key", ["arguments", "input"])
@pytest.mark.parametrize("word", ["", TRUE, FALSE])
def test_a_key_around_all_arguments_is_taken_off(key: str, word: str) -> None:
    text = invoke(parameter(key, '{"city": "Oslo", "days": "3"}', word))
    assert mend("deepseek_v4", text).calls == [("get_weather", {"city": "Oslo", "days": 3})]


@pytest.mark.parametrize("inner", ['{"city": "Oslo", "other": 1}', "{}", "[1]", "Oslo", '{"city": '])
def test_a_key_around_anything_else_stays(inner: str) -> None:
    ((name, arguments),) = mend("deepseek_v4", invoke(parameter("arguments", inner, TRUE))).calls
    assert (name, arguments) == ("get_weather", {"arguments": inner})


def test_a_tool_that_has_such_an_argument_keeps_it() -> None:
    schema = {"type": "object", "properties": {"input": {"type": "object"}, "city": {"type": "string"}}}
    text = invoke(parameter("input", '{"city": "Oslo"}', FALSE))
    assert mend("deepseek_v4", text, tools=[{"name": "get_weather", "parameters": schema}]).calls == [
        ("get_weather", {"input": {"city": "Oslo"}})
    ]


def test_an_argument_that_was_not_closed_ends_where_the_next_one_opens() -> None:
    text = invoke(f'<｜DSML｜parameter name="city"{TRUE}>Oslo', parameter("days", "3", FALSE))
    assert mend("deepseek_v4", text).calls == [("get_weather", {"city": "Oslo", "days": 3})]


def test_a_call_ends_where_its_wrapper_does() -> None:
    text = f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n{parameter("city", "x")}</｜DSML｜tool_calls>'
    mended = mend("deepseek_v4", text)
    assert (mended.calls, mended.content) == ([("get_weather", {"city": "x"})], "")
