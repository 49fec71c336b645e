"""GLM: keys and values in tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import FormatTests
from tests.inspection.mending import mend


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class TestGlm45(FormatTests):
    parser = "glm45"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        parts = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{text_of(v)}</arg_value>\n" for k, v in arguments.items())
        return f"<tool_call>{name}\n{parts}</tool_call>"


class TestGlm47(FormatTests):
    parser = "glm47"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        parts = "".join(f"<arg_key>{k}</arg_key><arg_value>{text_of(v)}</arg_value>" for k, v in arguments.items())
        return f"<tool_call>{name}{parts}</tool_call>"


def test_a_closing_tag_inside_a_value_is_part_of_it() -> None:
    text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a</arg_value> b</arg_value></tool_call>"
    assert mend("glm45", text).calls == [("get_weather", {"city": "a</arg_value> b"})]


def test_an_answer_cut_between_two_arguments_is_no_call() -> None:
    text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a</arg_value>\n"
    assert mend("glm45", text).content == text
