"""The table of demands, forms and preferences has every field and item type of the openai and anthropic SDKs."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.beta import BetaContentBlockParam, message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import ResponseInputItemParam, ToolParam, response_create_params

from gateway.domain import fields

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
TABLES = {
    "`/v1/chat/completions`": fields.CHAT_FIELDS,
    "`/v1/messages`": fields.MESSAGES_FIELDS,
    "`/v1/messages`: blocks": fields.MESSAGES_BLOCKS,
    "`/v1/responses`": fields.RESPONSES_FIELDS,
    "`/v1/responses`: items": fields.RESPONSES_ITEMS,
    "`/v1/responses`: tools": fields.RESPONSES_TOOLS,
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
        (keys(completion_create_params.CompletionCreateParamsNonStreaming), fields.CHAT_FIELDS),
        (keys(response_create_params.ResponseCreateParamsNonStreaming), fields.RESPONSES_FIELDS),
        (keys(message_create_params.MessageCreateParamsNonStreaming), fields.MESSAGES_FIELDS),
        (types_of(ResponseInputItemParam), fields.RESPONSES_ITEMS),
        (types_of(ToolParam), fields.RESPONSES_TOOLS),
        (types_of(BetaContentBlockParam), fields.MESSAGES_BLOCKS),
    ],
    ids=["chat", "responses", "messages", "items", "tools", "blocks"],
)
def test_every_field_and_type_of_the_sdks_is_in_the_table(asked: set[str], table: fields.Table) -> None:
    assert asked
    assert asked - {"stream"} <= set(table), sorted(asked - set(table))


def rows() -> str:
    lines = ["| where | demands | forms | preferences |", "|---|---|---|---|"]
    for where, table in TABLES.items():
        cells = [
            ", ".join(f"`{name}`" for name, kind in sorted(table.items()) if kind == asked)
            for asked in ("demand", "form", "preference")
        ]
        lines.append(f"| {where} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_page_has_the_table() -> None:
    assert rows() in PAGE
