"""Calls that a server tells in the words of an error."""

from __future__ import annotations

import json

import pytest

from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.policy import InspectionPolicy, formats_for
from gateway.inspection.unparsed import calls_told

TOOLS = OfferedTools([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])
POLICY = InspectionPolicy(tools=TOOLS, formats=formats_for("Qwen3.6-27B", None))
CALL = "<tool_call>\n<function=look>\n</function>\n</tool_call>"


def error(message: str) -> bytes:
    return json.dumps({"error": {"code": 500, "message": message, "type": "server_error"}}).encode()


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        (f"Failed to parse input at pos 12: {CALL}", CALL),
        (f"Failed to parse input at pos 12: so: {CALL}", CALL),
        ("Failed to parse input at pos 12: </tool_call>", None),
        (f"Failed to parse input at pos 12: {CALL.replace('look', 'rm_rf')}", None),
        (f"Failed to parse something: {CALL}", None),
    ],
)
def test_only_calls_of_offered_tools_are_taken(message: str, calls: str | None) -> None:
    assert calls_told(error(message), POLICY) == calls
    assert calls_told(error(message), None) is None
    assert calls_told(error(message), InspectionPolicy()) is None
