"""The tools of a request: which names may be called, and what type each argument is declared to have."""

from __future__ import annotations

import ast
import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

ANY: frozenset[str] = frozenset()
MAX_DEPTH = 8  # of references and alternatives inside one property; a schema may point at itself


class Offered:
    """Made once per request from its `tools` (OpenAI's shape, the flat one of /v1/responses, or Anthropic's)."""

    def __init__(self, tools: Iterable[Any]) -> None:
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = _function(tool)
            if function is not None:
                self._schemas[function["name"]] = _schema(function)
        self._types: dict[tuple[str, str], frozenset[str]] = {}
        self._names = sorted(self._schemas)

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def has(self, name: str) -> bool:
        return name in self._schemas

    def could_become(self, word: str) -> bool:
        """Does an offered name begin with `word`?"""
        at = bisect_left(self._names, word)
        return at < len(self._names) and self._names[at].startswith(word)

    def declares(self, name: str, argument: str) -> bool:
        return argument in _mapping(self._schemas[name].get("properties"))

    def schema(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of an offered tool's arguments, as it was declared; empty where none was.

        Raises KeyError for a tool that was not offered, as `required` and `declares` do."""
        return self._schemas[name]

    def required(self, name: str) -> frozenset[str]:
        """The arguments that a call of this tool must have."""
        declared = self._schemas[name].get("required")
        return frozenset(filter(_is_text, declared)) if isinstance(declared, list) else frozenset()

    def types(self, name: str, argument: str) -> frozenset[str]:
        """JSON schema types that the argument may have; empty = anything."""
        key = (name, argument)
        if key not in self._types:
            schema = self._schemas[name]
            self._types[key] = _types(_mapping(schema.get("properties")).get(argument), schema, MAX_DEPTH)
        return self._types[key]

    def typed(self, name: str, argument: str, text: str) -> Any:
        """The value that `text` means for this argument; the text itself where it fits no declared type."""
        return typed(text, self.types(name, argument))


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str)


def _function(tool: Any) -> Mapping[str, Any] | None:
    if not isinstance(tool, Mapping):
        return None
    function = tool.get("function", tool)
    named = isinstance(function, Mapping) and isinstance(function.get("name"), str) and function["name"]
    return function if named else None


def _schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(function.get("parameters", function.get("input_schema")))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return ANY
    if "type" in schema:
        declared = schema["type"]
        names = declared if isinstance(declared, list) else [declared]
        return frozenset(name for name in names if isinstance(name, str))
    if isinstance(schema.get("$ref"), str):
        return _types(_referred(schema["$ref"], root), root, depth - 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list):
            found = [_types(option, root, depth - 1) for option in schema[word]]
            return frozenset().union(*found) if all(found) or word == "allOf" else ANY
    if "const" in schema:
        return frozenset((_type_of(schema["const"]),))
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    return ANY


def _referred(ref: str, root: Mapping[str, Any]) -> Any:
    value: Any = root
    for part in ref.removeprefix("#/").split("/"):
        value = _mapping(value).get(part)
    return value


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    kinds = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")


def typed(text: str, types: frozenset[str]) -> Any:
    """`text` as one of the schema `types`. A declared string is only reread when another declared type fits better; an
    undeclared argument stays text unless it is a JSON object or array."""
    if types == {"string"}:
        return text
    value = _literal(text.strip())
    if value is _NOTHING or isinstance(value, str):
        return text  # quotes are the model's own
    kind = _type_of(value)
    if kind == "integer" and "number" in types:
        return value
    if kind == "number" and "integer" in types and "number" not in types and float(value).is_integer():
        return int(value)
    if kind in types or (not types and kind in ("object", "array")):
        return value
    return text


_NOTHING = object()
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}


def _literal(text: str) -> Any:
    """A JSON value; True, None and {'a': 1} are taken as Python means them."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        pass
    if not text.startswith(("{", "[")):
        return _NOTHING
    try:
        value = ast.literal_eval(text)
        return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return _NOTHING


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def as_json(arguments: Mapping[str, Any]) -> str:
    """The arguments of a call as JSON text that can be sent: unicode as it is, escaped only where it must be.

    Raises ValueError for numbers that JSON can't say (1e999)."""
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair can only travel escaped
        return json.dumps(arguments, allow_nan=False)
    return text
