"""Python's literals as models write them: values read, and texts that are no literal."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inspection.cursor import NotACall
from gateway.inspection.python_literals import MAX_DEPTH, python_literal

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_a_literal_that_python_writes_is_read_as_its_value(value: Any) -> None:
    assert python_literal(f"[{value!r}]") == [value]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[true, false, null]", [True, False, None]),
        ("(1, 2,)", [1, 2]),
        ("'it\\'s'", "it's"),
        (r"'\x41\u00e9\101'", "AéA"),
        (" { 'a' : -1.5e3 } ", {"a": -1500.0}),
        ("[1_000]", [1000]),
    ],
)
def test_what_models_write_beside_python_is_read(text: str, value: Any) -> None:
    assert python_literal(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "'a' 'b'", "f(1)", "[1 2]", "{'a'}", "'open", "1 +", "nan", "__import__('os')", "[" * (MAX_DEPTH + 1) + "]"],
)
def test_code_and_half_literals_are_no_literal(text: str) -> None:
    with pytest.raises(NotACall):
        python_literal(text)


def test_a_literal_at_the_deepest_nesting_is_read() -> None:
    text = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert python_literal(text) == ast.literal_eval(text)
