"""Whether the tools of a chat are functions, as a chat has them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.domain import tool_kinds
from gateway.domain.tool_kinds import tool_kinds as kinds_of

FUNCTION = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize(
    ("tools", "kinds"),
    [
        ([], "none"),
        (None, "none"),
        ([FUNCTION], "functions"),
        ([{"function": {"name": "look"}}], "functions"),
        ([FUNCTION, {"type": "web_search"}], "others"),
        ([{"type": "custom", "custom": {"name": "patch"}}], "others"),
        ([{"type": "function", "name": "look"}], "others"),
        ([{"name": "look", "input_schema": {}}], "others"),
        ([1], "functions"),  # the server refuses it
    ],
)
def test_each_list_has_its_kind_also_the_second_time(tools: Any, kinds: str) -> None:
    raw = Raw(json.dumps(tools).encode())
    assert [kinds_of(raw), kinds_of(raw)] == [kinds, kinds]


def test_lists_that_end_alike_are_told_apart_and_few_are_kept() -> None:
    end = {"type": "function", "function": {"name": "n" * 60}}
    first, second = ([{**one, "x": "y"}, end] for one in (FUNCTION, {"type": "web_search_1"}))
    size = max(len(json.dumps(first)), len(json.dumps(second)))
    texts = [json.dumps(one) for one in (first, second)]
    texts = [text[:1] + " " * (size - len(text)) + text[1:] for text in texts]
    assert [kinds_of(Raw(text.encode())) for text in texts] == ["functions", "others"]
    for number in range(200):
        kinds_of(Raw(json.dumps([{"type": "function", "function": {"name": f"f{number}"}}]).encode()))
    assert len(tool_kinds._kept) <= tool_kinds._KEPT_MOST
