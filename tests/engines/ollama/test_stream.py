"""Ollama's streams in OpenAI's shape, whatever arrives and however it is cut."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.upstream import ProtocolFailure, ResetFailure, UpstreamFailure
from gateway.engines.ollama.reply import LineFramer
from tests.engines.ollama_lines import DONE, call_line, deltas, ndjson, read, said, send, stream
from tests.engines.scripted import events_of


async def test_a_stream_has_openais_order() -> None:
    lines = (said(thinking="hm"), said(content="Hel"), said(content="lo"), {**said(), **DONE})
    events = await stream(*lines, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    usage = events[-2]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    assert deltas(events) == [
        {"role": "assistant", "content": ""},
        {"reasoning": "hm"},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    chunks = events[:-1]
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]] == [None, None, None, None, "stop"]
    assert {(c["id"], c["object"], c["model"]) for c in chunks} == {
        ("chatcmpl-r1", "chat.completion.chunk", "qwen3:8b")
    }
    assert len({c["created"] for c in chunks}) == 1


async def test_no_usage_is_sent_that_nobody_asked_for() -> None:
    events = await stream(said(content="x"), DONE)
    assert not any("usage" in e for e in events[:-1])


async def test_calls_get_ids_indexes_and_string_arguments() -> None:
    events = await stream(call_line("a", {"x": "<é>"}), call_line("b", {}), {**said(), **DONE})
    calls = [d["tool_calls"][0] for d in deltas(events) if "tool_calls" in d]
    assert [(c["index"], c["type"], c["function"]["name"]) for c in calls] == [
        (0, "function", "a"),
        (1, "function", "b"),
    ]
    assert all(re.fullmatch("call_[0-9a-f]{24}", c["id"]) for c in calls)
    assert [msgspec.json.decode(c["function"]["arguments"]) for c in calls] == [{"x": "<é>"}, {}]
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("reason", "ours"), [("stop", "stop"), ("length", "length"), (None, "stop")])
async def test_the_end_is_told_in_openais_word(reason: str | None, ours: str) -> None:
    events = await stream(said(content="x"), {**DONE, "done_reason": reason})
    assert events[-2]["choices"][0]["finish_reason"] == ours


async def test_a_turn_that_was_cut_says_so_even_with_calls() -> None:
    events = await stream(call_line("a", {}), {**DONE, "done_reason": "length"})
    assert events[-2]["choices"][0]["finish_reason"] == "length"


async def test_one_line_may_say_everything() -> None:
    line = {**said(thinking="hm", content="hi", tool_calls=[{"function": {"name": "f", "arguments": {}}}]), **DONE}
    kinds = [next(iter(d), "") for d in deltas(await stream(line))]
    assert kinds == ["role", "reasoning", "content", "tool_calls", ""]


async def test_an_error_line_becomes_an_error_event_and_nothing_follows() -> None:
    events = await stream(said(content="Hel"), {"error": "the runner died"}, {**said(), **DONE})
    assert events[-1]["error"]["message"] == "the runner died"


async def test_a_stream_without_its_last_line_has_no_finish_reason() -> None:
    events = await stream(said(content="Hel"))
    assert "[DONE]" not in events
    assert all(e["choices"][0]["finish_reason"] is None for e in events)


async def test_a_broken_connection_is_told_as_such() -> None:
    response, _, _ = await send(ndjson(said(content="Hel")), ResetFailure("gone"), stream=True)
    assert b"Hel" in await response.read_some()
    with pytest.raises(ResetFailure):
        await response.read_some()


@pytest.mark.parametrize("reason", ["load", "unload"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_loading_the_model_is_no_answer(reason: str, streamed: bool) -> None:
    response, _, _ = await send(ndjson({**said(), "done": True, "done_reason": reason}), stream=streamed)
    with pytest.raises(UpstreamFailure, match="loaded"):
        await response.read_all(1000)


async def test_a_last_line_without_its_line_break_counts() -> None:
    response, _, _ = await send(ndjson(said(content="x"), DONE).rstrip(b"\n"), stream=True)
    assert (await read(response)).endswith(b"[DONE]\n\n")


async def test_what_is_not_ollamas_json_is_a_failure() -> None:
    response, _, _ = await send(b"<html>\n", stream=True)
    with pytest.raises(ProtocolFailure):
        await response.read_some()


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(st.text(min_size=1), min_size=1, max_size=8),
    st.lists(st.integers(min_value=1, max_value=400), max_size=12),
)
async def test_how_the_bytes_arrive_does_not_matter(texts: list[str], cuts: list[int]) -> None:
    body = ndjson(*[said(content=text) for text in texts], {**said(), **DONE})
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(body[start : start + cut])
        start += cut
    pieces = [piece for piece in [*pieces, body[start:]] if piece]
    response, _, _ = await send(*pieces, stream=True)
    events = events_of(await read(response))
    assert "".join(d.get("content", "") for d in deltas(events)) == "".join(texts)
    assert events[-1] == "[DONE]"


async def test_one_arrival_is_one_piece_for_the_reader() -> None:
    response, _, _ = await send(ndjson(said(content="a"), said(content="b")), ndjson(DONE), stream=True)
    first = await response.read_some()
    assert first.count(b"data: ") == 3
    assert (await response.read_some()).endswith(b"[DONE]\n\n")
    assert await response.read_some() == b""


def test_a_line_without_an_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.engines.ollama.reply.LINE_MOST", 100)
    framer = LineFramer()
    framer.feed(b"x" * 100)
    with pytest.raises(ProtocolFailure):
        framer.feed(b"x")


async def test_abort_and_release_reach_the_connection() -> None:
    for streamed in (True, False):
        response, upstream, _ = await send(ndjson(DONE), stream=streamed)
        response.abort(reason := ResetFailure("left"))
        response.release()
        assert (upstream.aborted, upstream.released) == ([reason], 1)


async def test_logprobs_are_passed_in_openais_shape() -> None:
    entry = {"token": "x", "logprob": -0.5}
    events = await stream({**said(content="x"), "logprobs": [entry]}, DONE, logprobs=True)
    assert events[1]["choices"][0]["logprobs"]["content"] == [{**entry, "bytes": None, "top_logprobs": []}]
