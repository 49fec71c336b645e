"""Mistral: a token, the name, JSON; or a list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import JsonFormatTests
from tests.inspection.mending import mend


class TestMistral(JsonFormatTests):
    parser = "mistral"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, ensure_ascii=False)}"


class TestOlder(JsonFormatTests):
    parser = "mistral"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f'[TOOL_CALLS] [{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}]'


def test_an_id_may_stand_before_the_arguments() -> None:
    assert mend("mistral", "[TOOL_CALLS]ping[CALL_ID]abc123[ARGS]{}").calls == [("ping", {})]


def test_all_calls_of_an_older_list() -> None:
    text = '[TOOL_CALLS][{"name": "ping", "arguments": {}}, {"name": "ping", "arguments": {}}]'
    assert mend("mistral", text).calls == [("ping", {}), ("ping", {})]
