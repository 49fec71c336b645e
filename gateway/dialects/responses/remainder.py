"""What remains of a request that no chat can carry: everything but the tools, items and parts that have no translation.
A backend is chosen by it; the backend gets the request itself."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from gateway.dialects.fields import value_in
from gateway.dialects.responses.items import is_item, is_part

_ASKED = ("top_logprobs", "include")
_TEXT_ONLY = ("assistant", "system", "developer")

_encode = msgspec.json.Encoder().encode


def translatable(fields: dict[str, Raw]) -> dict[str, Raw]:
    """The fields of the request that remains. Raises GatewayError for JSON that cannot be read."""
    rest = {name: value for name, value in fields.items() if name not in _ASKED}
    tools, choice, given = (value_in(fields.get(name), name) for name in ("tools", "tool_choice", "input"))
    if isinstance(tools, list):
        functions = [tool for tool in tools if _type_of(tool) in (None, "function")]
        rest["tools"] = Raw(_encode(functions))
        if isinstance(choice, dict) or not functions:  # it may name one of the others
            rest.pop("tool_choice", None)
    if isinstance(given, list):
        rest["input"] = Raw(_encode([_item(item) for item in given if not isinstance(item, dict) or is_item(item)]))
    return rest


def _type_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None


def _item(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    return item | {name: _parts(item[name], item.get("role")) for name in ("content", "output") if name in item}


def _parts(content: Any, role: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [part for part in content if not isinstance(part, dict) or is_part(part, text_only=role in _TEXT_ONLY)]
