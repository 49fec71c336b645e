"""Values that servers read as a switch or as a number."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.body import as_number, as_switch


@pytest.mark.parametrize(
    ("value", "switch"),
    [
        (True, True), (False, False), (1, True), (0, False), (1.0, True), (0.0, False), ("true", True), ("TRUE", True),
        ("no", False), ("off", False), ("2", None), (2, None), ("", None), (None, None), ([], None), ({}, None),
    ],
)  # fmt: skip
def test_values_that_servers_read_as_a_switch(value: Any, switch: bool | None) -> None:
    assert as_switch(value) is switch


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (2, 2), (-2, -2), ("2", 2), (2.0, 2), (2.5, None), ("2.0", None), ("-2", None), ("1" * 20, int("1" * 20)),
        ("1" * 21, None), (True, None), (float("inf"), None), (float("nan"), None), (None, None), ([], None),
    ],
)  # fmt: skip
def test_values_that_servers_read_as_a_number(value: Any, number: int | None) -> None:
    assert as_number(value) == number
