from __future__ import annotations

from typing import Any

import pytest

from gateway.engines.call_ids import safe_id, with_ids

GIVEN = "functions.bash:0-" + "x" * 60


@pytest.mark.parametrize("ids", ["mistral", "safe", "short", "kimi"])
def test_a_call_and_its_result_keep_one_id(ids: str) -> None:
    history: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [{"id": GIVEN, "type": "function", "function": {"name": "bash"}}]},
        {"role": "tool", "tool_call_id": GIVEN, "content": "y"},
    ]
    call, result = with_ids(history, ids)
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] != GIVEN
    assert with_ids(history, ids) == [call, result]


def test_calls_of_several_turns_with_one_id_get_others() -> None:
    turn: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "bash"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "y"},
    ]
    made = with_ids([*turn, *turn], "unique")
    assert made[0]["tool_calls"][0]["id"] == made[1]["tool_call_id"] == "1"
    assert made[2]["tool_calls"][0]["id"] == made[3]["tool_call_id"] != "1"


def test_safe_ids_of_different_calls_differ() -> None:
    assert safe_id("functions.bash:0") != safe_id("functions_bash_0") == "functions_bash_0"
