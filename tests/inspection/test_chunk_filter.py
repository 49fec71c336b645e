"""A stream that is cut at a stop string says so."""

from __future__ import annotations

from gateway.inspection.chunk_filter import ChunkFilter


def test_the_answer_says_at_which_stop_string_it_was_cut() -> None:
    cut = ChunkFilter(chat=True, stops=["###", "END"])
    chunk = {"choices": [{"index": 0, "delta": {"content": "so END and more"}, "finish_reason": None}]}
    assert cut.take(chunk)
    assert [chunk["choices"][0][name] for name in ("finish_reason", "stop_reason")] == ["stop", "END"]
    assert chunk["choices"][0]["delta"] == {"content": "so "}
