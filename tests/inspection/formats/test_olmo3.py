"""Olmo 3: Python calls, one a line, in a wrapper."""

from __future__ import annotations

from tests.inspection.mending import mend


def test_calls_on_lines_of_one_wrapper_are_read() -> None:
    text = '<function_calls>\nget_weather(city="Oslo", days=3)\nping()\n</function_calls>'
    assert mend("olmo3", text).calls == [("get_weather", {"city": "Oslo", "days": 3}), ("ping", {})]


def test_words_of_json_are_arguments_too() -> None:
    assert mend("olmo3", '<function_calls>get_weather(city="Oslo", days=null)</function_calls>').calls == [
        ("get_weather", {"city": "Oslo", "days": None})
    ]


def test_a_call_without_its_wrapper_is_text() -> None:
    assert mend("olmo3", "ping()").content == "ping()"
