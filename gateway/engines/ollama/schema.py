"""Reduces JSON schemas to what Ollama can turn into a grammar. Pure.

Ollama passes `format` to llama.cpp's converter (`json-schema-to-grammar.cpp`), which refuses a whole schema because of
one unsupported part: a value of any type, a reference that is not `#/...`, a pattern without anchors. It also reads
`{}` as an object, ignores keys beside `anyOf`, names the rule of a reference by its last path segment alone, and reads
bounds as 32-bit integers. Unsupported parts are left out here, so that less is enforced but no schema is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from gateway.engines.base import InexpressibleRequest

REPEATED_MOST = 100  # a larger minLength, maxItems, ... makes the grammar too large for Ollama
BOUND_MOST = 2**31 - 1
PARTS_MOST = 20_000  # of a document: a few hundred bytes of `type`s or `allOf`s can mean more parts than fit in memory

_KINDS = ("string", "number", "integer", "boolean", "object", "array", "null")
_HINTS = {
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
# Letters, character classes and repetitions mean the same in a grammar. `.` and `[^...]` would match a quote.
_PATTERN = re.compile(r"\^(?:[\w :/@-]|\[[\w :/@.-]+\]|[*+?]|\{\d{1,2}(?:,\d{0,2})?\})+\$", re.ASCII)

Schema = dict[str, Any]


def any_value() -> Schema:
    """The schema of any JSON value; `{}` would mean an object."""
    return {"type": ["string", "number", "boolean", "object", "array", "null"]}


class Definitions:
    """The `$defs` of one document, collected from all schemas in it."""

    def __init__(self) -> None:
        self._schemas: dict[str, Schema] = {}
        self._parts = 0

    def adopt(self, schema: Any, param: str) -> Schema:
        """A self-contained schema, rewritten so that it can stand anywhere in the document: its references point to the
        document's root. Raises Refused, which names the request's field `param`."""
        try:
            return _SchemaReader(schema, self, param).read(schema)
        except RecursionError:
            raise InexpressibleRequest(f"`{param}`: the JSON schema is nested too deeply.", param) from None

    def rooted(self, schema: Schema) -> Schema:
        """The whole document, `schema` at its root."""
        return {**schema, "$defs": self._schemas} if self._schemas else schema

    def reserve(self) -> str:
        """A new name. Its schema is set later: it may refer to itself."""
        name = f"d{len(self._schemas)}"
        self._schemas[name] = {}
        return name

    def define(self, name: str, schema: Schema) -> None:
        self._schemas[name] = schema

    def count(self, parts: int, param: str) -> None:
        """Count parts of the document that are read. Raises Refused if they are too many."""
        self._parts += parts
        if self._parts > PARTS_MOST:
            raise InexpressibleRequest(f"`{param}`: the JSON schema has more than {PARTS_MOST} parts.", param)


class _SchemaReader:
    """Reads one schema. `document`: the root of its references. `definitions`: receives their targets."""

    def __init__(self, document: Any, definitions: Definitions, param: str) -> None:
        self._document, self._definitions, self._param = document, definitions, param
        self._names: dict[str, str] = {}  # reference -> name among `definitions`
        self._merges: dict[tuple[int, str], Schema | None] = {}  # of each `allOf`; None while it is read
        self._merge_names: dict[tuple[int, str], str] = {}  # those that were met again -> name among `definitions`

    def read(self, schema: Any) -> Schema:
        self._definitions.count(1, self._param)
        if not isinstance(schema, Mapping):
            return any_value()
        if "$ref" in schema:
            return {"$ref": "#/$defs/" + self._adopted(schema["$ref"])}
        if _list(schema.get("allOf")):
            return self._all_of(schema)
        return self._schema_of(schema)

    def _schema_of(self, schema: Mapping[str, Any]) -> Schema:
        options = _list(schema.get("anyOf")) or _list(schema.get("oneOf"))
        if options and "properties" not in schema:
            inherited = {"type": schema["type"]} if "type" in schema else {}
            return {"anyOf": [self.read({**inherited, **o} if isinstance(o, Mapping) else o) for o in options]}
        if "const" in schema:
            return {"const": schema["const"]}
        if values := _list(schema.get("enum")):
            return {"enum": values}
        kind = schema.get("type")
        if isinstance(kind, list) and kind:
            each = [self.read({**schema, "type": one}) for one in kind]
            return each[0] if len(each) == 1 else {"anyOf": each}
        return self._of_kind(schema, kind if isinstance(kind, str) else _hinted(schema))

    def _of_kind(self, schema: Mapping[str, Any], kind: str | None) -> Schema:
        if kind not in _KINDS:
            return any_value()
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "string":
            return {"type": "string", **_text_limits(schema)}
        return {"type": kind, **(_bounds(schema) if kind == "integer" else {})}

    def _object(self, schema: Mapping[str, Any]) -> Schema:
        read: Schema = {"type": "object"}
        required = [name for name in _list(schema.get("required")) if isinstance(name, str)]
        if isinstance(properties := schema.get("properties"), Mapping):
            declared = {name: self.read(value) for name, value in properties.items()}
            read["properties"] = declared | {name: any_value() for name in required if name not in declared}
            if required:
                read["required"] = list(dict.fromkeys(required))
        more = schema.get("additionalProperties")
        if isinstance(more, Mapping):
            read["additionalProperties"] = self.read(more)
        elif isinstance(more, bool) and not schema.get("patternProperties"):
            read["additionalProperties"] = more
        return read

    def _array(self, schema: Mapping[str, Any]) -> Schema:
        items = schema.get("items")
        if places := _list(schema.get("prefixItems")) or _list(items):
            return {"type": "array", "prefixItems": [self.read(place) for place in places]}
        read: Schema = {"type": "array"}
        if isinstance(items, Mapping):
            read["items"] = self.read(items)
            read |= _repetitions(schema, "minItems", "maxItems")
        return read

    def _all_of(self, schema: Mapping[str, Any]) -> Schema:
        """A schema with `allOf`. What it merges may lead back to it (generators write `allOf` with one reference for a
        field that has a description), so from the second time on it is referred to."""
        key = (id(schema["allOf"]), str(schema.get("type")))  # the `type` may come from the schema around it
        if key not in self._merges:
            self._merges[key] = None
            merge = self._merges[key] = self._schema_of(self._merged(schema))
            if key not in self._merge_names:
                return merge
            self._definitions.define(self._merge_names[key], merge)
        elif key not in self._merge_names:
            name = self._merge_names[key] = self._definitions.reserve()
            self._definitions.define(name, self._merges[key] or {})
        return {"$ref": "#/$defs/" + self._merge_names[key]}

    def _merged(self, schema: Mapping[str, Any], depth: int = 0) -> Schema:
        """The schema merged with its `allOf`. Of two values for the same key, the first counts."""
        if depth > 20:
            raise RecursionError
        parts = []
        for option in ({**schema, "allOf": None}, *_list(schema.get("allOf"))):
            part = self._followed(option)
            if _list(part.get("allOf")):
                part = self._merged(part, depth + 1)
            self._definitions.count(1 + len(part) + len(_mapping(part.get("properties"))), self._param)
            parts.append(part)
        merged: Schema = {}
        properties: Schema = {}
        for part in reversed(parts):
            merged |= part
            properties |= _mapping(part.get("properties"))
        required = [name for part in parts for name in _list(part.get("required"))]
        merged |= {"properties": properties} if properties else {}
        merged |= {"required": required} if required else {}
        return merged

    def _followed(self, schema: Any) -> Mapping[str, Any]:
        for _ in range(20):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                return _mapping(schema)
            schema = self._target(schema["$ref"])
        raise RecursionError

    def _adopted(self, ref: Any) -> str:
        """The name of a reference's target in the document."""
        target = self._target(ref)
        if ref not in self._names:
            name = self._names[ref] = self._definitions.reserve()
            self._definitions.define(name, self.read(target))
        return self._names[ref]

    def _target(self, ref: Any) -> Any:
        if not isinstance(ref, str) or not re.match(r"#(/|$)", ref):
            raise InexpressibleRequest(
                f"`{self._param}`: the reference {ref!r} leads out of its schema. Put what it means under `$defs`.",
                self._param,
            )
        value = self._document
        for word in ref.split("/")[1:]:
            word = unquote(word).replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and word.isdecimal() and int(word) < len(value):
                value = value[int(word)]
            elif isinstance(value, Mapping) and word in value:
                value = value[word]
            else:
                raise InexpressibleRequest(
                    f"`{self._param}`: the reference {ref!r} leads nowhere in its schema.", self._param
                )
        return value


def _hinted(schema: Mapping[str, Any]) -> str | None:
    """The type that the keys of a schema without `type` imply."""
    return next((kind for kind, words in _HINTS.items() if any(word in schema for word in words)), None)


def _text_limits(schema: Mapping[str, Any]) -> Schema:
    pattern, form = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str) and _PATTERN.fullmatch(pattern) and _compiles(pattern):
        return {"pattern": pattern}
    if isinstance(form, str):
        return {"format": form}
    return _repetitions(schema, "minLength", "maxLength")


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _repetitions(schema: Mapping[str, Any], *words: str) -> Schema:
    kept = _whole_numbers(schema, words, REPEATED_MOST)
    return kept if _in_order(kept.values()) and all(value >= 0 for value in kept.values()) else {}


def _bounds(schema: Mapping[str, Any]) -> Schema:
    """An integer's bounds; empty if they contradict each other."""
    low = _whole_numbers(schema, ("minimum", "exclusiveMinimum"), BOUND_MOST - 1)
    high = _whole_numbers(schema, ("maximum", "exclusiveMaximum"), BOUND_MOST - 1)
    least = max([low.get("minimum", -BOUND_MOST), low.get("exclusiveMinimum", -BOUND_MOST) + 1]) if low else None
    most = min([high.get("maximum", BOUND_MOST), high.get("exclusiveMaximum", BOUND_MOST) - 1]) if high else None
    if least is not None and most is not None and least > most:
        return {}
    return ({"minimum": least} if least is not None else {}) | ({"maximum": most} if most is not None else {})


def _whole_numbers(schema: Mapping[str, Any], words: Iterable[str], most: int) -> dict[str, int]:
    found = {word: schema.get(word) for word in words}
    return {word: value for word, value in found.items() if type(value) is int and abs(value) <= most}


def _in_order(values: Iterable[int]) -> bool:
    numbers = list(values)
    return numbers == sorted(numbers)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
