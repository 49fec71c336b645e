"""Whether a JSON value satisfies a schema, as far as it can be told cheaply. Pure."""

from __future__ import annotations

import re
from typing import Any

from gateway.domain.body import value_of

STARTS_MOST = 64  # lines that may begin the JSON of an answer
_FENCE = re.compile(r"```\s*\Z")
_LINE_OF_JSON = re.compile(r"(?<=\n)[{\[]")
DEPTH_MOST = 16  # of values inside of values
_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def answer_in(text: str, response_format: bytes) -> str | None:
    """The JSON that satisfies a request's `response_format`: all of this text, or its end, behind words and in a fence
    or not. None = there is none."""
    asked = value_of(response_format)
    form = asked.get("json_schema") if isinstance(asked, dict) else None
    schema = form.get("schema") if isinstance(form, dict) else None
    text = _FENCE.sub("", text.strip()).strip()
    starts = [0, *(found.start() for found in _LINE_OF_JSON.finditer(text))]
    for start in starts[-STARTS_MOST:]:
        value = value_of(text[start:])
        if isinstance(value, (dict, list)) and fits(value, schema):
            return text[start:]
    return None


def fits(value: Any, schema: Any, depth: int = DEPTH_MOST) -> bool:
    """Types, required keys, enums and what is inside; a keyword that is not looked at is satisfied."""
    if not isinstance(schema, dict) or depth == 0:
        return True
    types = schema.get("type")
    names = types if isinstance(types, list) else [types]
    kinds = [kind for name in names if isinstance(name, str) for kind in _KINDS.get(name, ())]
    if kinds and (not isinstance(value, tuple(kinds)) or (isinstance(value, bool) and bool not in kinds)):
        return False
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return False
    if isinstance(value, list):
        return all(fits(one, schema.get("items"), depth - 1) for one in value)
    if not isinstance(value, dict):
        return True
    required, inner = schema.get("required"), schema.get("properties")
    if isinstance(required, list) and any(isinstance(name, str) and name not in value for name in required):
        return False
    inner = inner if isinstance(inner, dict) else {}
    if schema.get("additionalProperties") is False and not value.keys() <= inner.keys():
        return False
    return all(fits(one, inner.get(name), depth - 1) for name, one in value.items())
