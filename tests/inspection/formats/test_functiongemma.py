"""FunctionGemma: bare keys and quotes of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import FormatTests
from tests.inspection.mending import mend

QUOTE = "<escape>"


def written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return QUOTE + value + QUOTE if isinstance(value, str) else json.dumps(value)


class TestFunctionGemma(FormatTests):
    parser = "functiongemma"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"<start_function_call>call:{name}{written(dict(arguments))}<end_function_call>"


def test_json_and_bare_words_are_taken_too() -> None:
    for arguments in (
        '{"city": "Oslo, Norway", "days": 3}',
        "{city:Oslo, Norway,days:3}",
        "{ city : Oslo, Norway , days : 3 }",
    ):
        mended = mend("functiongemma", f"<start_function_call>call:get_weather{arguments}<end_function_call>")
        assert mended.calls == [("get_weather", {"city": "Oslo, Norway", "days": 3})]


def test_an_open_quote_or_brace_leaves_the_text() -> None:
    for text in (
        "<start_function_call>call:get_weather{city:" + QUOTE + "R<end_function_call>",
        "<start_function_call>call:get_weather{city:[1<end_function_call>",
        "<start_function_call>ping",
    ):
        assert mend("functiongemma", text).content == text


def test_deep_nesting_is_refused_and_not_followed() -> None:
    text = "<start_function_call>call:write_file{meta:" + "[" * 5000
    assert mend("functiongemma", text).content == text


def test_the_schema_decides_what_a_quoted_value_is() -> None:
    quoted = {key: f"{QUOTE}{text}{QUOTE}" for key, text in {"path": "7", "content": "x", "mode": "3"}.items()}
    quoted |= {"ratio": f"{QUOTE}0.5{QUOTE}", "overwrite": f"{QUOTE}true{QUOTE}", "meta": QUOTE + '{"k": 1}' + QUOTE}
    inner = ",".join(f"{key}:{value}" for key, value in quoted.items())
    (call,) = mend("functiongemma", f"<start_function_call>call:write_file{{{inner}}}<end_function_call>").calls
    expected = {"path": "7", "content": "x", "mode": 3, "ratio": 0.5, "overwrite": True, "meta": {"k": 1}}
    assert call == ("write_file", expected)
