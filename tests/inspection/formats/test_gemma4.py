"""Gemma4: bare keys and quotes of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import FormatTests
from tests.inspection.mending import mend

QUOTE = '<|"|>'


def written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return QUOTE + value + QUOTE if isinstance(value, str) else json.dumps(value)


class TestGemma4(FormatTests):
    parser = "gemma4"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"<|tool_call>call:{name}{written(dict(arguments))}<tool_call|>"


def test_json_and_bare_words_are_taken_too() -> None:
    for arguments in (
        '{"city": "Oslo, Norway", "days": 3}',
        "{city:Oslo, Norway,days:3}",
        "{ city : Oslo, Norway , days : 3 }",
    ):
        mended = mend("gemma4", f"<|tool_call>call:get_weather{arguments}<tool_call|>")
        assert mended.calls == [("get_weather", {"city": "Oslo, Norway", "days": 3})]


def test_an_open_quote_or_brace_leaves_the_text() -> None:
    for text in (
        "<|tool_call>call:get_weather{city:" + QUOTE + "R<tool_call|>",
        "<|tool_call>call:get_weather{city:[1<tool_call|>",
        "<|tool_call>ping",
    ):
        assert mend("gemma4", text).content == text


def test_deep_nesting_is_refused_and_not_followed() -> None:
    text = "<|tool_call>call:write_file{meta:" + "[" * 5000
    assert mend("gemma4", text).content == text
