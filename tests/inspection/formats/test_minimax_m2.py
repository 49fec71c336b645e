"""MinimaxM2: arguments in tags with a prefix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import FormatTests
from tests.inspection.mending import mend


class TestMinimaxM2(FormatTests):
    parser = "minimax_m2"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        def part(key: str, value: Any) -> str:
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, ensure_ascii=False)
            return f'<parameter name="{key}" string="{str(is_text).lower()}">{text}</parameter>\n'

        parts = "".join(part(key, value) for key, value in arguments.items())
        invoke = f'<invoke name="{name}">\n{parts}</invoke>'
        return f"<minimax:tool_call>\n{invoke}\n</minimax:tool_call>"


def test_the_wrapper_may_be_missing_and_types_come_from_the_schema() -> None:
    city = '<parameter name="city">007</parameter>'
    days = '<parameter name="days">3</parameter>'
    text = f'<invoke name="get_weather">{city}{days}</invoke>'
    assert mend("minimax_m2", text).calls == [("get_weather", {"city": "007", "days": 3})]


def test_the_calls_before_a_broken_one_count() -> None:
    ping = '<invoke name="ping"></invoke>'
    rest = '\n<invoke name="get_weather">\n<para'
    mended = mend("minimax_m2", "<minimax:tool_call>" + ping + ping + rest)
    assert (mended.calls, mended.content) == ([("ping", {}), ("ping", {})], rest)
