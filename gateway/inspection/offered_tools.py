"""The tools of a request: their names and the declared types of their arguments."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from gateway.inspection.cursor import NotACall
from gateway.inspection.python_literals import python_literal

ANY: frozenset[str] = frozenset()
MAX_DEPTH = 8  # of references and alternatives inside one property; a schema may point at itself
# Type names outside JSON schema that clients use; vLLM 0.32 knows them too.
_ALIASES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short", "unsigned"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    **dict.fromkeys(("arr", "list", "sequence"), "array"),
    "bool": "boolean",
    "dict": "object",
}


class ValueSchema:
    """What a schema declares about one value and the values inside it. `root`: the document of its references. Every
    lookup is cached, because a value may have a hundred thousand items."""

    __slots__ = ("_fields", "_item", "_rest", "_root", "_schema", "_types")

    def __init__(self, schema: Any, root: Mapping[str, Any]) -> None:
        self._schema = schema
        self._root = root
        self._types: frozenset[str] | None = None
        self._item: ValueSchema | None = None
        self._rest: Any = None
        self._fields: dict[str, ValueSchema] | None = None

    @property
    def types(self) -> frozenset[str]:
        """JSON schema types that the value may have; empty = any type."""
        if self._types is None:
            self._types = _types(self._schema, _Walk(self._root), MAX_DEPTH)
        return self._types

    def field(self, key: str) -> ValueSchema:
        """The shape of the value under this key, if this value is an object."""
        if self._fields is None:
            self._fields = self._look_up()
        return self._fields.get(key) or self._rest or _UNKNOWN

    def _look_up(self) -> dict[str, ValueSchema]:
        declared: dict[str, Any] = {}
        for schema in _alternatives(self._schema, _Walk(self._root), MAX_DEPTH):
            declared = {**_mapping(schema.get("properties")), **declared}
            rest = schema.get("additionalProperties")
            if self._rest is None and isinstance(rest, Mapping):
                self._rest = ValueSchema(rest, self._root)
        return {key: ValueSchema(schema, self._root) for key, schema in declared.items()}

    def item(self) -> ValueSchema:
        """The shape of each item, if this value is a list."""
        if self._item is None:
            options = _alternatives(self._schema, _Walk(self._root), MAX_DEPTH)
            items = next((o["items"] for o in options if isinstance(o.get("items"), Mapping)), None)
            self._item = ValueSchema(items, self._root) if items is not None else _UNKNOWN
        return self._item

    def fitted(self, value: Any) -> Any:
        """`value` converted to the declared types, at any depth: a string becomes the declared type if no string is
        allowed there; a number or a boolean becomes a string if a string is declared and its own type is not."""
        if self._schema is None:
            return value
        if isinstance(value, dict):
            return {key: self.field(key).fitted(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.item().fitted(item) for item in value]
        return _fitted(value, self.types)


class _Walk:
    """Limits the walk through one schema to `MOST` steps: alternatives that refer to each other grow exponentially."""

    MOST = 200
    __slots__ = ("_left", "root")

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self._left = self.MOST

    def step(self) -> bool:
        self._left -= 1
        return self._left >= 0


_UNKNOWN = ValueSchema(None, {})


class OfferedTools:
    """The `tools` of one request (in OpenAI's format, the flat one of /v1/responses, or Anthropic's)."""

    def __init__(self, tools: Iterable[Any]) -> None:
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = _function(tool)
            if function is not None:
                self._schemas[function["name"]] = _schema(function)
        self._types: dict[tuple[str, str], frozenset[str]] = {}
        self._shapes: dict[str, ValueSchema] = {}
        self._names = sorted(self._schemas)

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def has(self, name: str) -> bool:
        return name in self._schemas

    def like(self, name: str) -> str | None:
        """The only offered name that differs from this one in case or in its hyphens alone."""
        folded = name.casefold().replace("-", "_")
        found = [one for one in self._names if one.casefold().replace("-", "_") == folded]
        return found[0] if len(found) == 1 else None

    def could_become(self, word: str) -> bool:
        """Does an offered name begin with `word`?"""
        at = bisect_left(self._names, word)
        return at < len(self._names) and self._names[at].startswith(word)

    def declares(self, name: str, argument: str) -> bool:
        return argument in _mapping(self._schemas[name].get("properties"))

    def schema(self, name: str) -> Mapping[str, Any]:
        """The declared JSON schema of an offered tool's arguments; empty if none was declared.

        Raises KeyError for a tool that was not offered, as `required` and `declares` do."""
        return self._schemas[name]

    def required(self, name: str) -> frozenset[str]:
        """The arguments that a call of this tool must have."""
        declared = self._schemas[name].get("required")
        return frozenset(filter(_is_text, declared)) if isinstance(declared, list) else frozenset()

    def types(self, name: str, argument: str) -> frozenset[str]:
        """JSON schema types that the argument may have; empty = any type."""
        key = (name, argument)
        if key not in self._types:
            schema = self._schemas[name]
            declared = _mapping(schema.get("properties")).get(argument)
            self._types[key] = _types(declared, _Walk(schema), MAX_DEPTH)
        return self._types[key]

    def shape(self, name: str) -> ValueSchema:
        """The declared shape of this tool's arguments."""
        found = self._shapes.get(name)
        if found is None:
            found = self._shapes[name] = ValueSchema(self._schemas[name], self._schemas[name])
        return found

    def typed(self, name: str, argument: str, text: str) -> Any:
        """`text` as the argument's declared type; the text itself if it matches no declared type."""
        return self.fitted(name, argument, typed(text, self.types(name, argument)))

    def fitted(self, name: str, argument: str, value: Any) -> Any:
        """The same for a parsed value: see `Shape.fitted`."""
        if isinstance(value, (dict, list)):
            return self.shape(name).field(argument).fitted(value)
        return _fitted(value, self.types(name, argument))


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


def _types(schema: Any, walk: _Walk, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth == 0 or not walk.step():
        return ANY
    if "type" in schema:
        declared = schema["type"]
        names = declared if isinstance(declared, list) else [declared]
        plain = (name.strip().lower() for name in names if isinstance(name, str))
        return frozenset(_ALIASES.get(name, name) for name in plain)
    if isinstance(schema.get("$ref"), str):
        return _types(_referred(schema["$ref"], walk.root), walk, depth - 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list):
            found = [_types(option, walk, depth - 1) for option in schema[word][: walk.MOST]]
            return frozenset().union(*found) if all(found) or word == "allOf" else ANY
    if "const" in schema:
        return frozenset((_type_of(schema["const"]),))
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    return ANY


def _alternatives(schema: Any, walk: _Walk, depth: int) -> Iterator[Mapping[str, Any]]:
    """The schema itself, and all schemas that it refers to or combines."""
    if not isinstance(schema, Mapping) or depth == 0 or not walk.step():
        return
    yield schema
    if isinstance(schema.get("$ref"), str):
        yield from _alternatives(_referred(schema["$ref"], walk.root), walk, depth - 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list):
            for option in schema[word][: walk.MOST]:
                yield from _alternatives(option, walk, depth - 1)


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


def _fitted(value: Any, types: frozenset[str]) -> Any:
    if isinstance(value, str):
        return typed(value, types) if types and "string" not in types else value
    if not isinstance(value, (int, float)) or "string" not in types:
        return value
    kind = _type_of(value)
    return value if kind in types or (kind == "integer" and "number" in types) else json.dumps(value)


def typed(text: str, types: frozenset[str]) -> Any:
    """`text` as one of the schema `types`. If a string is declared, it is converted only if another declared type fits
    better. An undeclared argument stays a string unless it is a JSON object or array."""
    if types == {"string"}:
        return text
    value = _literal(text.strip(), types)
    if value is _NOTHING or isinstance(value, str):
        return text  # quotes in the text belong to the string
    kind = _type_of(value)
    if kind == "integer" and "number" in types:
        return value
    if kind == "number" and "integer" in types and types.isdisjoint(("number", "string")) and float(value).is_integer():
        return int(value)
    if kind in types or (not types and kind in ("object", "array")):
        return value
    return text


_NOTHING = object()
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ANY_CASE = {"true": ("boolean", True), "false": ("boolean", False), "null": ("null", None)}
_EXPONENT = r"(?:[eE][+-]?\d{1,3})?"
_NUMBER = re.compile(rf"[+-]?(?:(?P<whole>\d{{1,400}})|(?:\d{{1,400}}\.\d{{0,400}}|\.\d{{1,400}}){_EXPONENT})", re.A)
_LONGEST_WORD = 5
_NUMERIC = frozenset(("integer", "number"))


def _literal(text: str, types: frozenset[str]) -> Any:
    """The value of a literal: JSON; Python's True, None and {'a': 1}; and, if `types` allow it, also TRUE, 007, +5 and
    .5. `_NOTHING` if it is none of these."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text, strict=False, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        pass
    if len(text) <= _LONGEST_WORD:
        kind, value = _ANY_CASE.get(text.lower(), ("", None))
        if kind in types:
            return value
    if types & _NUMERIC and (number := _NUMBER.fullmatch(text)) is not None:
        whole = number["whole"] is not None
        return int(text) if whole else float(text) if math.isfinite(float(text)) else _NOTHING
    if not text.startswith(("{", "[")):
        return _NOTHING
    try:
        return python_literal(text)
    except NotACall:
        return _NOTHING


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(text)
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_as_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode  # json.dumps would create an encoder each time


def as_json(arguments: Mapping[str, Any]) -> str:
    """The arguments of a call as JSON text that can be sent. Unicode is escaped only if necessary.

    Raises ValueError for numbers that JSON cannot represent (1e999)."""
    text = _as_text(arguments)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair can only be sent escaped
        return json.dumps(arguments, allow_nan=False)
    return text
