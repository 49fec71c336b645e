"""The table of demands, forms and preferences has every field and item type of the openai and anthropic SDKs."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.beta import BetaContentBlockParam, message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import ResponseInputItemParam, ToolParam, response_create_params

from gateway.domain.fields import TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
PLACES = {
    "`/v1/chat/completions`": TABLES["chat"],
    "`/v1/messages`": TABLES["messages"],
    "`/v1/messages`: blocks": TABLES["messages_blocks"],
    "`/v1/responses`": TABLES["responses"],
    "`/v1/responses`: items": TABLES["responses_items"],
    "`/v1/responses`: tools": TABLES["responses_tools"],
}


def keys(kind: Any) -> set[str]:
    return set(kind.__required_keys__ | kind.__optional_keys__)


def literals(hint: Any) -> set[str]:
    if typing.get_origin(hint) is typing.Literal:
        return set(typing.get_args(hint))
    return {word for inner in typing.get_args(hint) for word in literals(inner)}


def types_of(union: Any) -> set[str]:
    """The values of `type` of all members."""
    found: set[str] = set()
    for member in typing.get_args(union):
        if hasattr(member, "__required_keys__"):
            found |= literals(typing.get_type_hints(member, include_extras=False).get("type"))
        else:
            found |= types_of(member)
    return found


@pytest.mark.parametrize(
    ("asked", "table"),
    [
        (keys(completion_create_params.CompletionCreateParamsNonStreaming), TABLES["chat"]),
        (keys(response_create_params.ResponseCreateParamsNonStreaming), TABLES["responses"]),
        (keys(message_create_params.MessageCreateParamsNonStreaming), TABLES["messages"]),
        (types_of(ResponseInputItemParam), TABLES["responses_items"]),
        (types_of(ToolParam), TABLES["responses_tools"]),
        (types_of(BetaContentBlockParam), TABLES["messages_blocks"]),
    ],
    ids=["chat", "responses", "messages", "items", "tools", "blocks"],
)
def test_every_field_and_type_of_the_sdks_is_in_the_table(asked: set[str], table: Mapping[str, str]) -> None:
    assert asked
    assert asked - {"stream"} <= set(table), sorted(asked - set(table))


def rows() -> str:
    lines = ["| where | demands | forms | preferences |", "|---|---|---|---|"]
    for where, table in PLACES.items():
        cells = [
            ", ".join(f"`{name}`" for name, kind in sorted(table.items()) if kind == asked)
            for asked in ("demand", "form", "preference")
        ]
        lines.append(f"| {where} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_page_has_the_table() -> None:
    assert rows() in PAGE
