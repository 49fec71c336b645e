"""The text of a stream that may be continued: plain text alone, within its limit and the memory for it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import GatewayError
from gateway.inspection.sent_text import TEXT_MOST, UNREAD_MOST
from gateway.routing.resume import BrokenStream, can_resume
from tests.routing.test_resume import asking, event, sent


@pytest.mark.parametrize(
    ("delta", "more"),
    [
        ({"reasoning": "hm"}, {}),
        ({"reasoning_content": "hm"}, {}),
        ({"tool_calls": [{"index": 0}]}, {}),
        ({"refusal": "no"}, {}),
        ({"content": [{"type": "text"}]}, {}),
        ({"content": "<think>"}, {}),
        ({}, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        ({}, {"choices": [{"index": 1, "delta": {"content": "b"}}]}),
    ],
)
def test_anything_but_text_rules_it_out(delta: dict[str, Any], more: dict[str, Any]) -> None:
    request = asking()
    text = sent("Hello")
    assert can_resume(BrokenStream(request.fields, text), suspected=False)
    text.add(event(delta, **more))
    assert not can_resume(BrokenStream(request.fields, text), suspected=False)


def test_an_answer_that_has_used_its_limit_does_not_go_on() -> None:
    request = asking(max_tokens=2)
    assert not can_resume(BrokenStream(request.fields, sent("a", "b")), suspected=False)


def test_no_more_text_is_kept_than_there_is_memory_for() -> None:
    def full(size: int) -> None:
        raise GatewayError("memory_full", "full")

    assert not sent("a", count=full).is_plain
    long = sent(*["x" * UNREAD_MOST] * (TEXT_MOST // UNREAD_MOST + 1))
    assert (long.is_plain, long.text) == (False, "")
