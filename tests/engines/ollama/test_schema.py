"""Schemas that Ollama's converter can read: nothing fails as a whole, and what it understands is still enforced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.engines.base import InexpressibleRequest
from gateway.engines.ollama.schema import Definitions, any_value
from simulator.ollama_request import BadFormat, check_format, plain_schema
from simulator.replies import example

TEXT = {"type": "string"}


def document(schema: Any) -> dict[str, Any]:
    definitions = Definitions()
    return definitions.rooted(definitions.adopt(schema, "tools"))


def fits(value: Any, schema: dict[str, Any]) -> bool:
    return Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 5}}, "required": ["a"]},
        {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3},
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"},
        {"type": "string", "format": "date-time"},
        {"type": "string", "minLength": 1, "maxLength": 20},
        {"type": "array", "prefixItems": [TEXT, {"type": "boolean"}]},
        {"enum": ["a", 1, None]},
        {"anyOf": [TEXT, {"type": "null"}]},
    ],
)
def test_what_the_converter_understands_stays(schema: dict[str, Any]) -> None:
    check_format(schema)
    assert document(schema) == schema


@pytest.mark.parametrize("schema", [{}, True, {"title": "X"}, {"type": "any"}, {"not": TEXT}, None])
def test_a_value_of_any_type_is_said_with_its_types(schema: Any) -> None:
    assert document({"type": "object", "properties": {"x": schema}})["properties"]["x"] == any_value()
    check_format(any_value())
    for value in ("a", 1, 1.5, True, None, [1], {"a": 1}):
        assert fits(value, any_value())


@pytest.mark.parametrize(
    ("schema", "read"),
    [
        ({"type": "string", "pattern": "[0-9]+"}, TEXT),
        ({"type": "string", "pattern": r"^\d+$"}, TEXT),
        ({"type": "string", "pattern": "^.*$"}, TEXT),
        ({"type": "string", "pattern": "^[9-0]$"}, TEXT),
        ({"type": "string", "maxLength": 100_000}, TEXT),
        ({"type": "array", "items": TEXT, "maxItems": 100_000}, {"type": "array", "items": TEXT}),
        ({"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1}, {"type": "integer"}),
        ({"type": "integer", "minimum": 5, "maximum": 1}, {"type": "integer"}),
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
        ({"type": "integer", "minimum": 3, "exclusiveMaximum": 9}, {"type": "integer", "minimum": 3, "maximum": 8}),
        ({"type": "number", "minimum": 0}, {"type": "number"}),
        ({"type": ["string", "null"], "description": "x"}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"type": ["string"], "enum": ["a"]}, {"enum": ["a"]}),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, {"anyOf": [{"const": 1}, {"const": 2}]}),
        ({"type": "array", "prefixItems": [TEXT], "items": False}, {"type": "array", "prefixItems": [TEXT]}),
        ({"allOf": [TEXT], "description": "x"}, TEXT),
    ],
)  # fmt: skip
def test_what_would_fail_or_mean_something_else_is_said_otherwise(schema: dict[str, Any], read: dict[str, Any]) -> None:
    assert document(schema) == read


def test_alternatives_beside_properties_do_not_hide_them() -> None:
    schema = {"type": "object", "properties": {"a": TEXT, "b": TEXT}}
    assert document({**schema, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}) == schema


def test_a_required_property_without_a_schema_can_be_said() -> None:
    assert document({"type": "object", "properties": {}, "required": ["a"]})["properties"] == {"a": any_value()}


def test_all_of_is_put_together_and_keeps_what_is_optional() -> None:
    schema = {
        "$defs": {"Base": {"type": "object", "properties": {"id": TEXT, "note": TEXT}, "required": ["id"]}},
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"n": {"type": "integer"}}, "required": ["n"]}],
    }
    assert document(schema) == {
        "type": "object",
        "properties": {"id": TEXT, "note": TEXT, "n": {"type": "integer"}},
        "required": ["id", "n"],
    }


def test_references_of_several_schemas_get_names_of_their_own() -> None:
    definitions = Definitions()
    one = {"$defs": {"Item": TEXT}, "type": "object", "properties": {"a": {"$ref": "#/$defs/Item"}}}
    two = {"definitions": {"Item": {"type": "null"}}, "properties": {"b": {"$ref": "#/definitions/Item"}}}
    both = {"anyOf": [definitions.adopt(schema, "tools") for schema in (one, two)]}
    whole = definitions.rooted(both)
    check_format(whole)
    assert fits({"a": "x"}, whole)
    assert fits({"b": None}, whole)
    assert whole["$defs"] == {"d0": TEXT, "d1": {"type": "null"}}


@pytest.mark.parametrize("ref", ["#", "#/$defs/Node"])
def test_a_schema_may_point_at_itself(ref: str) -> None:
    following = {"anyOf": [{"type": "null"}, {"$ref": ref}]}
    node = {"type": "object", "properties": {"next": following}, "required": ["next"]}
    whole = document({**node, "$defs": {"Node": node}})
    check_format(whole)
    assert fits({"next": {"next": None}}, whole)
    assert not fits({"next": {"next": 5}}, whole)


def test_words_of_a_reference_are_unescaped() -> None:
    schema = {"$defs": {"a/b": {"c d": TEXT}, "l": [TEXT, {"type": "null"}]}, "properties": {
        "x": {"$ref": "#/$defs/a~1b/c%20d"}, "y": {"$ref": "#/$defs/l/1"}}}  # fmt: skip
    assert document(schema)["$defs"] == {"d0": TEXT, "d1": {"type": "null"}}


@pytest.mark.parametrize("ref", ["https://example.invalid/x.json", "#/$defs/Nope", "other.json#/a", "#name", 5])
def test_a_reference_that_leads_nowhere_is_refused_with_its_name(ref: object) -> None:
    with pytest.raises(InexpressibleRequest, match="reference") as refused:
        document({"type": "object", "properties": {"a": {"$ref": ref}}})
    assert refused.value.param == "tools"


@pytest.mark.parametrize("ref", [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/b"}]}])
def test_all_of_without_an_end_is_refused(ref: dict[str, Any]) -> None:
    schema = {"$defs": {"a": {"$ref": "#/$defs/a"}, "b": {"allOf": [{"$ref": "#/$defs/b"}]}}, "allOf": [ref]}
    with pytest.raises(InexpressibleRequest, match="nested"):
        document(schema)


def test_a_described_field_may_hold_a_schema_of_its_own_kind() -> None:
    """Pydantic writes `allOf` with one reference for a field that has a description."""
    node = {"type": "object", "properties": {"v": TEXT, "next": {"description": "x", "allOf": [{"$ref": "#"}]}}}
    read = document({**node, "required": ["v"]})
    check_format(read)
    assert fits({"v": "a", "next": {"v": "b", "next": {"v": "c"}}}, read)
    assert not fits({"v": "a", "next": {"v": "b", "next": {"v": 1}}}, read)


def nested(levels: int, around: Callable[[Any], Any]) -> Any:
    schema: Any = {"type": "object"}
    for _ in range(levels):
        schema = around(schema)
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """References, each to two of the next."""
    each = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**each, f"l{levels}": {"type": "object"}}, **each["l0"]}


@pytest.mark.parametrize(
    "schema",
    [
        nested(40, lambda inner: {"type": ["object", "object"], "properties": {"a": inner}}),
        nested(40, lambda inner: {"type": ["array", "array"], "items": inner}),
        doubling(19),
    ],
)
def test_a_small_schema_that_means_millions_of_parts_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InexpressibleRequest, match="parts"):
        document(schema)


def test_types_that_several_fields_share_by_all_of_are_read_once() -> None:
    def level(n: int) -> dict[str, Any]:
        return {"type": "object", "properties": {x: {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}]} for x in ("a", "b")}}

    schema = {"$defs": {**{f"l{n}": level(n) for n in range(40)}, "l40": TEXT}, "$ref": "#/$defs/l0"}
    read = document(schema)
    check_format(read)
    assert fits({"a": {"b": {}}}, read)
    assert not fits({"a": {"b": 1}}, read)


def test_the_converter_refuses_what_it_is_spared() -> None:
    """Holds the simulator's converter to what is known of the real one."""
    for schema in ({"title": "X"}, {"$ref": "#"}, {"type": "string", "pattern": "a"}, {"anyOf": [{"required": ["a"]}]}):
        with pytest.raises(BadFormat):
            check_format({"type": "object", "properties": {"x": schema}})


words = st.text("ab", min_size=1, max_size=2)
LEAF = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def integer(low: int, more: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": low + more}


def structure(properties: dict[str, Any], required: int) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)[:required]}


leaves = st.one_of(
    st.sampled_from([{}, TEXT, {"title": "any"}, {"type": "null"}, {"$ref": "#/$defs/leaf"}]),
    st.just({"type": ["boolean", "null"]}),
    st.builds(lambda values: {"enum": values}, st.lists(st.one_of(words, st.integers()), min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, words),
    st.builds(integer, st.integers(-99, 99), st.integers(0, 9)),
)


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(structure, st.dictionaries(words, inner, max_size=3), st.integers(0, 3)),
        st.builds(lambda item: {"type": "array", "items": item, "minItems": 1}, inner),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
    )


@settings(deadline=None)
@given(st.recursive(leaves, grown, max_leaves=8))
def test_every_schema_becomes_one_that_is_taken_and_its_values_fit_the_original(schema: dict[str, Any]) -> None:
    original = {**schema, "$defs": {"leaf": LEAF}}
    whole = document(original)
    check_format(whole)
    value = example(plain_schema(whole, ""), "x", "")
    assert fits(value, whole)
    assert fits(value, original)


KEYS = ("type", "properties", "items", "anyOf", "allOf", "$ref", "enum", "required", "pattern", "minimum", "format")
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.sampled_from(["#", "object"])
)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)),
    max_leaves=12,
)


@settings(deadline=None)
@given(json_values)
def test_junk_is_read_or_refused(schema: Any) -> None:
    try:
        whole = document(schema)
    except InexpressibleRequest:
        return
    check_format(whole)
