"""Qwen3-Coder: a tag for each argument."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import FormatTests
from tests.inspection.mending import mend


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class TestQwen3Xml(FormatTests):
    parser = "qwen3_xml"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        parts = "".join(f"<parameter={k}>\n{text_of(v)}\n</parameter>\n" for k, v in arguments.items())
        return f"<tool_call>\n<function={name}>\n{parts}</function>\n</tool_call>"


class TestWithoutTheWrapper(TestQwen3Xml):
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return super().write(name, arguments).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")


def test_values_on_the_line_of_their_tags() -> None:
    given = {"path": "a b", "content": '<p class="x">a &amp; b</p>', "meta": {"a": 1}}
    parts = "".join(f"<parameter={key}>{text_of(value)}</parameter>" for key, value in given.items())
    text = f"<tool_call><function=write_file>{parts}</function></tool_call>"
    assert mend("qwen3_coder", text).calls == [("write_file", given)]


def test_closing_tags_inside_a_value_are_part_of_it() -> None:
    city = "<parameter=city>\nx </parameter> y </function> z\n</parameter>"
    text = f"<tool_call>\n<function=get_weather>\n{city}\n</function>"
    assert mend("qwen3_xml", text).calls == [("get_weather", {"city": "x </parameter> y </function> z"})]


def test_a_missing_closing_tag_does_not_swallow_the_next_argument() -> None:
    text = "<tool_call><function=get_weather>\n<parameter=city>\nOslo\n<parameter=days>\n3\n</function>\n</tool_call>"
    assert mend("qwen3_xml", text).calls == [("get_weather", {"city": "Oslo", "days": 3})]


def test_the_end_of_the_wrapper_ends_the_function_too() -> None:
    text = "<tool_call>\n<function=get_weather >\n<parameter=city>\nOslo\n</parameter>\n</tool_call>"
    assert mend("qwen3_xml", text).calls == [("get_weather", {"city": "Oslo"})]


def test_a_line_like_an_argument_of_another_tool_is_part_of_the_value() -> None:
    value = "see\n<parameter=city>\nOslo"
    text = f"<function=write_file><parameter=path>a</parameter><parameter=content>\n{value}\n</parameter></function>"
    assert mend("qwen3_xml", text).calls == [("write_file", {"path": "a", "content": value})]


def test_a_value_that_fits_no_declared_type_stays_text() -> None:
    text = "<function=get_weather><parameter=city>Oslo</parameter><parameter=days>three</parameter></function>"
    assert mend("qwen3_xml", text).calls == [("get_weather", {"city": "Oslo", "days": "three"})]


def test_words_of_python_are_understood() -> None:
    text = (
        "<function=write_file><parameter=overwrite>True</parameter><parameter=meta>{'a': None}</parameter></function>"
    )
    assert mend("qwen3_xml", text).calls == [("write_file", {"overwrite": True, "meta": {"a": None}})]
