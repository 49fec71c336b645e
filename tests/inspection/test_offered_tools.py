"""Which tools may be called, and what their arguments are declared to be."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from gateway.inspection.offered_tools import OfferedTools, as_json, typed
from tests.limits import cpu_within

SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {"Unit": {"enum": ["C", "F"]}, "Loop": {"$ref": "#/$defs/Loop"}},
    "properties": {
        "unit": {"$ref": "#/$defs/Unit"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["string", "null"]},
        "open": {"anyOf": [{"type": "integer"}, {}]},
        "level": {"enum": [1, 2]},
        "loop": {"$ref": "#/$defs/Loop"},
    },
}
SHAPES: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    {"type": "function", "name": "f", "parameters": SCHEMA},
    {"name": "f", "input_schema": SCHEMA},
]


@pytest.mark.parametrize("tool", SHAPES)
def test_types_come_from_the_schema_in_every_shape_of_tools(tool: dict[str, Any]) -> None:
    offered = OfferedTools([tool])
    types = {name: set(offered.types("f", name)) for name in [*SCHEMA["properties"], "undeclared"]}
    assert types == {
        "unit": {"string"},
        "maybe": {"integer", "null"},
        "either": {"string", "null"},
        "open": set(),
        "level": {"integer"},
        "loop": set(),
        "undeclared": set(),
    }


def test_tools_that_are_none_are_passed_over() -> None:
    offered = OfferedTools([None, "x", {}, {"function": None}, {"name": 3}, {"name": "f", "parameters": "none"}])
    assert "f" in offered
    assert offered.types("f", "a") == frozenset()
    assert not OfferedTools([{"type": "web_search"}])


@pytest.mark.parametrize(
    ("declared", "required"),
    [
        ({"required": ["city", "days"]}, {"city", "days"}),
        ({"required": []}, set()),
        ({}, set()),
        ({"required": "city"}, set()),
        ({"required": ["city", 3, None]}, {"city"}),
    ],
)
def test_required_arguments_are_those_the_schema_names(declared: dict[str, Any], required: set[str]) -> None:
    offered = OfferedTools([{"name": "f", "parameters": declared}])
    assert offered.required("f") == required
    assert offered.schema("f") == declared


def test_a_tool_that_was_not_offered_has_no_schema() -> None:
    offered = OfferedTools([{"name": "f"}])
    assert (offered.schema("f"), offered.required("f")) == ({}, frozenset())
    with pytest.raises(KeyError):
        offered.schema("g")
    with pytest.raises(KeyError):
        offered.required("g")


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("007", "string", "007"),
        ("null", "string", "null"),
        ("null", "string null", None),
        ("none", "string null", "none"),
        ("7", "string null", "7"),
        ('"q"', "string", '"q"'),
        ('"q"', "string null", '"q"'),
        (" 7 ", "integer", 7),
        ("7.0", "integer", 7),
        ("7.5", "integer", "7.5"),
        ("7", "number", 7),
        ("True", "boolean", True),
        ("1", "boolean", "1"),
        ("{'a': (1, None)}", "object", {"a": [1, None]}),
        ('{"a": 1}', "", {"a": 1}),
        ("7", "", "7"),
        ("[1", "array", "[1"),
        ("[" * 10_000, "array", "[" * 10_000),
        ("NaN", "number", "NaN"),
    ],
)
def test_text_becomes_what_is_declared_or_stays(text: str, types: str, value: Any) -> None:
    result = typed(text, frozenset(types.split()))
    assert result == value
    assert type(result) is type(value)


def test_arguments_are_json_that_can_be_sent() -> None:
    assert as_json({"a": "Zürich 東京"}) == '{"a": "Zürich 東京"}'
    assert as_json({"a": "\ud83c"}) == '{"a": "\\ud83c"}'
    with pytest.raises(ValueError):
        as_json({"a": float("inf")})


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("007", "integer", 7),
        ("+5", "integer", 5),
        (".5", "number", 0.5),
        ("5.", "number", 5.0),
        ("FALSE", "boolean", False),
        ("Null", "null integer", None),
        ("3.0", "integer string", "3.0"),
        ("007", "string integer", 7),
        ("1e999", "number", "1e999"),
        (".5e999", "number", ".5e999"),
        ("[1e999]", "array", "[1e999]"),
        ("9" * 5000, "integer", "9" * 5000),
    ],
)
def test_numbers_and_words_may_be_written_as_people_do(text: str, types: str, value: Any) -> None:
    result = typed(text, frozenset(types.split()))
    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("['a', \"b\", True, None, 1.5, {'k': (1, 2)}]", ["a", "b", True, None, 1.5, {"k": [1, 2]}]),
        ("[1, 2,]", [1, 2]),
        ('["rm"\n "-rf"]', '["rm"\n "-rf"]'),  # a comma may be missing
        ("['a'] + ['b']", "['a'] + ['b']"),
        ("[f(1)]", "[f(1)]"),
        ("['a'", "['a'"),
    ],
)
def test_a_list_may_be_pythons_if_nothing_has_to_be_guessed(text: str, value: Any) -> None:
    assert typed(text, frozenset({"array"})) == value


@pytest.mark.parametrize("unit", ["1,", "[],", "{'a':1},", "'x',", "[" * 50 + "]" * 50 + ","])
def test_a_long_list_of_pythons_is_read_in_little_time_and_memory(unit: str) -> None:
    text = "[" + unit * (100_000 // len(unit)) + "'a']"
    with cpu_within(4):  # tracing the memory takes most of it
        tracemalloc.start()
        typed(text, frozenset({"array"}))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 12_000_000


def test_other_names_of_types_are_known() -> None:
    names = {"int": "integer", "FLOAT": "number", "str": "string", "bool": "boolean", "dict": "object", "list": "array"}
    offered = OfferedTools([{"name": "f", "parameters": {"properties": {name: {"type": name} for name in names}}}])
    assert {name: offered.types("f", name) for name in names} == {k: frozenset((v,)) for k, v in names.items()}


NESTED = {
    "$defs": {"Room": {"properties": {"no": {"type": "integer"}, "name": {"type": "string"}}}},
    "properties": {
        "rooms": {"type": "array", "items": {"$ref": "#/$defs/Room"}},
        "best": {"anyOf": [{"$ref": "#/$defs/Room"}, {"type": "null"}]},
        "rates": {"type": "object", "additionalProperties": {"type": "number"}},
    },
}


def test_what_is_deeper_has_its_declared_type_too() -> None:
    shape = OfferedTools([{"name": "f", "parameters": NESTED}]).shape("f")
    room = {"no": "7", "name": "7", "more": "7"}
    found = shape.fitted({"rooms": [room, "x"], "best": room, "rates": {"a": "0.5"}, "other": ["7"]})
    fitted = {"no": 7, "name": "7", "more": "7"}
    assert found == {"rooms": [fitted, "x"], "best": fitted, "rates": {"a": 0.5}, "other": ["7"]}


def test_a_schema_that_refers_to_itself_in_many_ways_costs_little() -> None:
    """Every level would multiply the work."""
    many = [{"$ref": "#/$defs/A"}] * 200
    schema = {"$defs": {"A": {"anyOf": many, "items": {"$ref": "#/$defs/A"}}}, "properties": {"a": {"anyOf": many}}}
    offered = OfferedTools([{"name": "f", "parameters": schema}])
    with cpu_within(3.0):
        offered.types("f", "a")
        offered.fitted("f", "a", {str(n): [["7"]] for n in range(10_000)})
        offered.fitted("f", "a", [["7"] * 1000] * 100)
