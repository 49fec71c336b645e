"""Whether a JSON value satisfies a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.inspection.schema_fit import answer_in, fits

PLANET = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "moons": {"type": ["integer", "null"]},
        "kind": {"enum": ["gas", "ice"]},
    },
    "required": ["name", "moons"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "value", [{"name": "a", "moons": 1}, {"name": "a", "moons": None}, {"name": "a", "moons": 1, "kind": "ice"}]
)
def test_a_value_fits(value: Any) -> None:
    assert fits(value, PLANET)


@pytest.mark.parametrize(
    "value",
    [
        {"name": "a"},
        {"name": 1, "moons": 1},
        {"name": "a", "moons": True},
        {"name": "a", "moons": 1, "kind": "rock"},
        {"name": "a", "moons": 1, "more": 1},
        [],
    ],
)
def test_a_value_does_not_fit(value: Any) -> None:
    assert not fits(value, PLANET)
    assert not fits([value], {"type": "array", "items": PLANET})


def test_an_answer_is_json_that_fits() -> None:
    form = json.dumps({"type": "json_schema", "json_schema": {"name": "a", "schema": PLANET}}).encode()
    assert answer_in('{"name": "a", "moons": 1}', form)
    for text in ("", "They ask for a planet.", '{"name": "a"}', '"a"', "[1]", '{"name": "a", "moons": 1'):
        assert not answer_in(text, form)
    assert answer_in('{"any": 1}', b'{"type": "json_schema"}')
