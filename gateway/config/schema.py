"""The JSON schema of routes.yaml, for editors: generated from the models, so it says what they say."""

from __future__ import annotations

import json
from typing import Any

from gateway.config.models import RoutesFile


def json_schema() -> dict[str, Any]:
    """The schema as plain data. A `${VAR}` is allowed wherever a single value is."""
    generated = RoutesFile.model_json_schema()
    schema = {"title": generated["title"], **_plain(generated)}
    alias = {"$ref": "#/$defs/AliasSection"}
    short = schema["$defs"]["AliasSection"]["properties"]["use"] | {"description": "Short form: the steps in order."}
    schema["properties"]["aliases"]["additionalProperties"] = {"anyOf": [short, alias]}
    # A section may be all commented out.
    for name in ("server", "defaults", "nodes", "aliases", "clients", "alerts", "traces"):
        schema["properties"][name] = {"anyOf": [schema["properties"][name], {"type": "null"}]}
    schema["required"] = ["backends"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """As the file `routes.schema.json` holds it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _plain(node: Any) -> Any:
    """Without null, because no key may be given an empty value (the None of the models means "not written"); without
    the defaults, which the models hold in seconds and bytes; without the titles, which repeat the keys."""
    if isinstance(node, list):
        return [_plain(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _plain(inner) for key, inner in node.items() if key not in ("default", "title")}
    members = kept.get("anyOf")
    if isinstance(members, list) and {"type": "null"} in members:
        rest = [member for member in members if member != {"type": "null"}]
        kept.pop("anyOf")
        kept = {**rest[0], **kept} if len(rest) == 1 else {**kept, "anyOf": rest}
    return kept
