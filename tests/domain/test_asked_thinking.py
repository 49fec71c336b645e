"""Fields that ask for thinking or against it, as a demand or as a wish."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.body import THINKING_FIELDS, AskedThinking

ON, OFF = AskedThinking(True), AskedThinking(False)
WISH, WISH_NOT = AskedThinking(True, wish=True), AskedThinking(False, wish=True)


@pytest.mark.parametrize(
    ("field", "value", "asked"),
    [
        ("think", True, ON), ("think", False, OFF), ("think", "high", WISH), ("think", "none", WISH_NOT),
        ("think", 1, None),
        ("chat_template_kwargs", {"enable_thinking": False}, OFF), ("chat_template_kwargs", {"thinking": True}, ON),
        ("chat_template_kwargs", {"enable_thinking": 0}, None), ("chat_template_kwargs", [], None),
        ("thinking", {"type": "enabled"}, ON), ("thinking", {"type": "disabled"}, OFF),
        ("thinking", {"type": "adaptive"}, WISH), ("thinking", {"type": []}, None), ("thinking", "enabled", None),
        ("reasoning_effort", "low", WISH), ("reasoning_effort", "none", WISH_NOT), ("reasoning_effort", None, None),
        ("reasoning", {"effort": "high"}, WISH), ("reasoning", {}, None),
    ],
)  # fmt: skip
def test_a_thinking_field_is_a_demand_a_wish_or_neither(field: str, value: Any, asked: AskedThinking | None) -> None:
    assert THINKING_FIELDS[field](value) == asked
