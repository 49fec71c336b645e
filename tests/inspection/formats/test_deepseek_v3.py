"""DeepSeek V3: arguments in a fenced block."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import JsonFormatTests
from tests.inspection.mending import mend

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


class TestDeepSeekV3(JsonFormatTests):
    parser = "deepseek_v3"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        given = json.dumps(arguments, ensure_ascii=False)
        head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n"
        return f"{BEGIN}{head}```json\n{given}\n```<｜tool▁call▁end｜>{END}"


def test_the_fence_may_be_missing_and_the_json_may_have_lines() -> None:
    head = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    text = f'{BEGIN}{head}{{\n  "city": "Oslo"\n}}<｜tool▁call▁end｜>{END}'
    assert mend("deepseek_v3", text).calls == [("get_weather", {"city": "Oslo"})]


def test_several_calls_in_one_wrapper() -> None:
    ping = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜>"
    assert mend("deepseek_v3", f"{BEGIN}{ping}\n{ping}{END}").calls == [("ping", {}), ("ping", {})]
