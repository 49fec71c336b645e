"""Calls that have lost their opening tag to a parser that could not read them."""

from __future__ import annotations

import json

import pytest

from gateway.inspection.mender import Mender
from gateway.inspection.policy import formats_for
from tests.inspection.mending import TOOLS, Mended, run

CALL = '{"name": "get_weather", "parameters": {"city": "Oslo"}}'
OSLO = ("get_weather", {"city": "Oslo"})


def mended(text: str, parser: str = "hermes", size: int = 0) -> Mended:
    machine = Mender(formats_for(None, parser, unopened=True), TOOLS)
    pieces = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
    return run(machine, pieces)


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("parser", ["hermes", "qwen3_xml", "gemma4"])
@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (CALL + "\n</tool_call>", [OSLO], ""),
        (CALL + "</tool_call>", [OSLO], ""),
        ('{"arguments": {"city": "Oslo"}, "name": "get_weather"}\n</tool_call>', [OSLO], ""),
        (f"[{CALL}]\n</tool_call>", [OSLO], ""),
        (f"See:\n{CALL}\n</tool_call>\ndone", [OSLO], "See:\n\ndone"),
        (f"{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>", [OSLO, OSLO], ""),
        (f"{CALL}\n</tool_call>\n{CALL}\n</tool_call>", [OSLO, OSLO], ""),
    ],
)
def test_it_is_a_call_with_its_closing_tag(
    text: str, calls: list[object], content: str, parser: str, size: int
) -> None:
    found = mended(text, parser, size)
    assert (found.calls, found.content) == (calls, content)


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize(
    "text",
    [
        CALL,
        CALL + "\nand no tag",
        f"```json\n{CALL}\n</tool_call>\n```",
        f"The model writes `{CALL}</tool_call>` there.",
        '{"name": "nope", "parameters": {"city": "Oslo"}}\n</tool_call>',
        '{"name": "Ada", "city": "Oslo"}',
        json.dumps({"name": "get_weather", "note": "a tool"}) + "\n\nis what it is called. </tool_call>",
        "</tool_call>",
    ],
)
def test_prose_and_json_stay_text(text: str, size: int) -> None:
    found = mended(text, size=size)
    assert (found.calls, found.content) == ([], text)
