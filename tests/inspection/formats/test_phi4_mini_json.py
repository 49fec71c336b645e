"""Phi-4-mini: a JSON list behind a word."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.inspection.formats.common import JsonFormatTests
from tests.inspection.mending import mend


class TestPhi4MiniJson(JsonFormatTests):
    parser = "phi4_mini_json"

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f'functools[{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}]'


def test_the_word_alone_is_text() -> None:
    text = "functools[0] is no call"
    assert mend("phi4_mini_json", text).content == text
