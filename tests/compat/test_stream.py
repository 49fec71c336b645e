"""What is checked in a stream is checked until nothing more can be found, and not again."""

from __future__ import annotations

import json
from typing import Any

from gateway.compat.expected import Expected
from gateway.compat.reasoning import THINK
from gateway.rewrite import Identity
from gateway.routing.request import CHAT, InferenceRequest
from gateway.streaming import StreamTrack


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """As an engine writes it that puts spaces into its JSON: every event of it is parsed."""
    chunk = {"id": "up-1", "created": 2, "model": "served"}
    return b"data: " + json.dumps({**chunk, "choices": [{"delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


def test_after_the_thoughts_were_split_off_no_text_is_taken_for_the_beginning() -> None:
    """A line of a table is no garbage in the middle of an answer."""
    expected = Expected(thoughts=THINK.with_opener_implied())
    request = InferenceRequest(CHAT, {}, "alias", stream=True)
    track = StreamTrack(request, Identity(), expected)
    for text in ("hm", "\n</think>\n", "A table:\n", "-" * 30, "\n"):
        track.take([event({"content": text})])
    track.take([event({}, "stop"), b"data: [DONE]\n\n"])
    track.conclude()
    assert (track.reasoning, track.content, track.whole) == (True, True, True)
    assert track.violations == {"reasoning_as_text"}, "that of the thoughts"
