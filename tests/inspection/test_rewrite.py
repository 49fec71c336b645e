"""Events whose choices were changed: what they keep of the original event."""

from __future__ import annotations

import json

import pytest

from gateway.inspection.rewrite import rebuilt
from gateway.transport.sse import Choice


@pytest.mark.parametrize(("end", "kept"), [("stop", "###"), ("tool_calls", None), (None, None)])
def test_the_stop_string_belongs_to_the_end_that_it_caused(end: str | None, kept: str | None) -> None:
    delta = {"content": "so <"}
    choice = {"index": 0, "delta": delta, "logprobs": {}, "finish_reason": "stop", "stop_reason": "###"}
    event = b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"
    (made,) = rebuilt(event, [Choice(0, {"content": "so"}, None, end)])
    (found,) = json.loads(made.removeprefix(b"data: "))["choices"]
    assert found.get("stop_reason") == kept
    assert "logprobs" not in found
    assert found["delta"] == {"content": "so"}
