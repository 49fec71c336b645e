"""Events whose choices were changed: what they keep of the original event."""

from __future__ import annotations

import json

import pytest

from gateway.inspection import rewrite
from gateway.inspection.rewrite import ReplyIdentity, Rewriter, rebuilt
from gateway.transport.sse import Choice, Chunk, data_of, read_chunk


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


def test_the_model_is_learned_from_the_first_event_that_names_one() -> None:
    """Azure and some proxies begin with an event that has no model, or an empty one."""
    rewriter = Rewriter(ReplyIdentity(), "alias")
    for number, model in enumerate([None, "", "served", "served"]):
        fields = {"id": "up-1", "created": 2, "choices": []} | ({} if model is None else {"model": model})
        event = b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"
        chunk = read_chunk(data_of(event) or b"")
        assert isinstance(chunk, Chunk)
        rewriter.note(event, chunk)
        if number == 0:
            rewriter.learn()
        made = json.loads(data_of(rewriter.apply(event)) or b"")
        assert made.get("model") == ("alias" if "model" in fields else None)


BODIES = (
    b'{"id":"x","model":"served","choices":[]}',
    b'{"id":"x","choices":[{"message":{"content":"\\"model\\":\\"served\\""}}],"model":"served"}',
    b'{"model":"served","x":{"model":"served"}}',
    b'{"x":{"model":"served"},"model":"served"}',
    b'{"model": "served"}',
    b'{"id":"x"}',
)


@pytest.mark.parametrize("body", BODIES)
def test_a_whole_answer_has_the_name_that_was_asked_for(body: bytes) -> None:
    assert json.loads(rewrite.whole(body, "served", "alias")).get("model", "alias") == "alias"
    assert rewrite.whole(body, None, "alias") == rewrite.whole(body, "alias", "alias") == body
