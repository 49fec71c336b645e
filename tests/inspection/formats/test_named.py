"""Kimi K2: calls with an id in a section."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import JsonFormatTests
from tests.inspection.mending import mend

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


class TestKimiK2(JsonFormatTests):
    parser = "kimi_k2"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        given = json.dumps(arguments, ensure_ascii=False)
        call = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{given}<|tool_call_end|>"
        return BEGIN + call + END


def test_the_section_may_be_missing() -> None:
    text = "<|tool_call_begin|>ping<|tool_call_argument_begin|> {} <|tool_call_end|>"
    assert mend("kimi_k2", text).calls == [("ping", {})]


def test_the_calls_before_a_truncated_one_count() -> None:
    ping = "<|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    rest = '<|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{"ci'
    mended = mend("kimi_k2", BEGIN + ping + rest)
    assert (mended.calls, mended.content) == ([("ping", {})], rest)
