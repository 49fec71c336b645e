"""DeepSeekV32: arguments in tags with a prefix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import FormatTests
from tests.inspection.mending import mend


class TestDeepSeekV32(FormatTests):
    parser = "deepseek_v32"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        def part(key: str, value: Any) -> str:
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, ensure_ascii=False)
            return f'<｜DSML｜parameter name="{key}" string="{str(is_text).lower()}">{text}</｜DSML｜parameter>\n'

        parts = "".join(part(key, value) for key, value in arguments.items())
        invoke = f'<｜DSML｜invoke name="{name}">\n{parts}</｜DSML｜invoke>'
        return f"<｜DSML｜function_calls>\n{invoke}\n</｜DSML｜function_calls>"


def test_the_wrapper_may_be_missing_and_types_come_from_the_schema() -> None:
    city = '<｜DSML｜parameter name="city">007</｜DSML｜parameter>'
    days = '<｜DSML｜parameter name="days">3</｜DSML｜parameter>'
    text = f'<｜DSML｜invoke name="get_weather">{city}{days}</｜DSML｜invoke>'
    assert mend("deepseek_v32", text).calls == [("get_weather", {"city": "007", "days": 3})]


def test_the_calls_before_a_broken_one_count() -> None:
    ping = '<｜DSML｜invoke name="ping"></｜DSML｜invoke>'
    rest = '\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜para'
    mended = mend("deepseek_v32", "<｜DSML｜function_calls>" + ping + ping + rest)
    assert (mended.calls, mended.content) == ([("ping", {}), ("ping", {})], rest)
