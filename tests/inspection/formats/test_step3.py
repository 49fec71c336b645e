"""Step 3: arguments in tags of its own, in wrappers that look like DeepSeek's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.inspection.formats.common import FormatTests
from tests.inspection.mending import mend

PING = '<steptml:invoke name="ping"></steptml:invoke>'
CALL = f"<｜tool_call_begin｜>function<｜tool_sep｜>{PING}<｜tool_call_end｜>"


class TestStep3(FormatTests):
    parser = "step3"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        def part(key: str, value: Any) -> str:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            return f'<steptml:parameter name="{key}">{text}</steptml:parameter>'

        parts = "".join(part(*item) for item in arguments.items())
        invoke = f'<steptml:invoke name="{name}">{parts}</steptml:invoke>'
        call = f"<｜tool_call_begin｜>function<｜tool_sep｜>{invoke}<｜tool_call_end｜>"
        return f"<｜tool_calls_begin｜>{call}<｜tool_calls_end｜>"


@pytest.mark.parametrize(
    "text",
    [
        PING,
        CALL,
        f"<｜tool_calls_begin｜>{CALL}",
        f"<｜tool_calls_begin｜>\n{PING}\n<｜tool_calls_end｜>",
        f"<｜tool_calls_begin｜>\n{CALL.replace('><', '>' + chr(10) + '<')}\n<｜tool_calls_end｜>",
    ],
)
def test_each_wrapper_may_be_missing_and_white_space_stand_between(text: str) -> None:
    mended = mend("step3", text)
    assert (mended.calls, mended.content) == ([("ping", {})], "")


def test_what_is_no_function_stays_text() -> None:
    text = CALL.replace("function", "other")
    assert mend("step3", text).calls == [("ping", {})], "the call itself is whole"
    assert mend("step3", text).content.startswith("<｜tool_call_begin｜>other")
