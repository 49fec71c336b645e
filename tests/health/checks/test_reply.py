"""Replies to checks, put together from fragments."""

from __future__ import annotations

from typing import Any

from tests.health.checks.test_graders import look
from tests.health.checks.test_graders_flaws import stream


def test_a_call_in_fragments_is_put_together() -> None:
    def part(**function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": 0, "function": function}]}

    good = stream(part(name="get_weather"), part(arguments='{"ci'), part(arguments='ty": "Oslo"}'))
    assert look("tool_stream", good).seen == 'called get_weather({"city": "Oslo"})'
    cut = stream(part(name="get_weather"), part(arguments='{"ci'))
    assert look("tool_stream", cut).result == "no"
