"""DeepSeek V3.1: the name, a separator, JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import JsonFormatTests
from tests.inspection.mending import mend

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


class TestDeepSeekV31(JsonFormatTests):
    parser = "deepseek_v31"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        given = json.dumps(arguments, ensure_ascii=False)
        return f"{BEGIN}<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{given}<｜tool▁call▁end｜>{END}"


def test_several_calls_in_one_wrapper_or_in_none() -> None:
    ping = "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    assert mend("deepseek_v31", f"{BEGIN}{ping}{ping}{END}").calls == [("ping", {}), ("ping", {})]
    assert mend("deepseek_v31", f"{ping}\n{ping}").calls == [("ping", {}), ("ping", {})]
