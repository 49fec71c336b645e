"""What Ollama makes of `format`: which schemas its grammar converter (llama.cpp's) takes, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PRIMITIVES = ("string", "number", "integer", "boolean", "null", "object", "array")
_DEEPEST = 8  # references inside references that are followed for an example


class BadFormat(Exception):
    """A schema that the converter refuses as a whole."""


def check_format(wanted: Any) -> None:
    """Raises BadFormat for what is neither "json" nor a schema that a grammar can be made of."""
    if wanted in (None, "", "json"):
        return
    if not isinstance(wanted, dict):
        raise BadFormat(f'invalid format: "{wanted}"; expected "json" or a valid JSON Schema object')
    try:
        _visit(wanted, wanted, ())
    except _Unreadable:
        raise BadFormat("invalid JSON schema in format") from None


class _Unreadable(Exception):
    pass


def _visit(schema: Any, root: Mapping[str, Any], refs: tuple[str, ...]) -> None:
    """The converter's order of questions: what comes first hides the rest."""
    if not isinstance(schema, dict):
        raise _Unreadable
    kind = schema.get("type")
    if "$ref" in schema:
        if schema["$ref"] not in refs:
            _visit(_target(schema["$ref"], root), root, (*refs, schema["$ref"]))
    elif options := schema.get("oneOf") or schema.get("anyOf"):
        _visit_all(options, root, refs)
    elif isinstance(kind, list):
        _visit_all([{**schema, "type": one} for one in kind], root, refs)
    elif "const" in schema or "enum" in schema:
        return
    elif kind in (None, "object") and ("properties" in schema or schema.get("additionalProperties", True) is not True):
        more = schema.get("additionalProperties")
        _visit_all([*schema.get("properties", {}).values(), *([more] if isinstance(more, dict) else [])], root, refs)
    elif kind in (None, "object", "string") and "allOf" in schema:
        return
    elif kind in (None, "array") and ("items" in schema or "prefixItems" in schema):
        items = schema.get("items", schema.get("prefixItems"))
        _visit_all(items if isinstance(items, list) else [items], root, refs)
    elif kind in (None, "string") and "pattern" in schema:
        if not (schema["pattern"].startswith("^") and schema["pattern"].endswith("$")):
            raise _Unreadable
    elif schema and kind not in _PRIMITIVES:
        raise _Unreadable


def _visit_all(schemas: Sequence[Any], root: Mapping[str, Any], refs: tuple[str, ...]) -> None:
    for schema in schemas:
        _visit(schema, root, refs)


def _target(ref: str, root: Mapping[str, Any]) -> Any:
    if not ref.startswith("#/"):
        raise _Unreadable
    value: Any = root
    for word in ref.split("/")[1:]:
        if not isinstance(value, dict) or word not in value:
            raise _Unreadable
        value = value[word]
    return value


def plain_schema(schema: Mapping[str, Any], said: str) -> Any:
    """The schema without references; of alternatives that name a tool, those whose tool is spoken of come first."""
    return _plain(schema, schema, said, 0)


def _plain(schema: Any, root: Mapping[str, Any], said: str, depth: int) -> Any:
    if isinstance(schema, list):
        return sorted((_plain(s, root, said, depth) for s in schema), key=lambda s: not _named(s, said))
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {} if depth == _DEEPEST else _plain(_target(schema["$ref"], root), root, said, depth + 1)
    plain = {word: value for word, value in schema.items() if word != "$defs"}
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            plain[word] = _plain(schema[word], root, said, depth)
    if isinstance(schema.get("properties"), dict):
        plain["properties"] = {name: _plain(s, root, said, depth) for name, s in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        plain["items"] = _plain(schema["items"], root, said, depth)
    return plain


def _named(schema: Any, said: str) -> bool:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    name = properties.get("name", {}).get("const") if isinstance(properties, dict) else None
    return isinstance(name, str) and name.replace("_", " ") in said.replace("_", " ")
