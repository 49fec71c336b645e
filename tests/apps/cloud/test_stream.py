"""Streams of clouds in OpenAI's shape."""

from __future__ import annotations

from tests.apps.cloud.test_engine import TOOL, ask, deltas, said
from tests.engines.anthropic_server import (
    START,
    AnthropicServer,
    Script,
    block,
    end,
    event,
    text_block,
    tool_block,
)
from tests.engines.scripted import events_of


async def test_a_stream_has_openais_shape(server: AnthropicServer) -> None:
    thought = block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"})
    server.script = Script(
        pieces=[START, thought, text_block(1, "Hel", "lo"), tool_block(2, "now", '{"a":', "1}"), end("tool_use")]
    )
    response = await ask(server.url, stream=True, tools=[TOOL])
    assert response.headers["content-type"] == "text/event-stream"
    events = events_of(await response.read_all(100_000))
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 9
    chunks = events[:-2]
    assert all({"index", "delta", "finish_reason"} <= c["choices"][0].keys() for c in chunks)
    assert {(c["id"], c["object"]) for c in chunks} == {("chatcmpl-r1", "chat.completion.chunk")}
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == ["tool_calls"]
    assert "".join(d.get("content") or "" for d in deltas(chunks)) == "Hello"
    assert "".join(d.get("reasoning_content") or "" for d in deltas(chunks)) == "hm"
    calls = [call for d in deltas(chunks) for call in d.get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a":1}'


async def test_an_end_without_a_finish_reason_is_not_given_one(server: AnthropicServer) -> None:
    server.script = Script(pieces=[START, text_block(0, "Hel")])
    events = events_of(await (await ask(server.url, stream=True)).read_all(100_000))
    assert events
    assert "[DONE]" not in events
    assert all(e["choices"][0]["finish_reason"] is None for e in events)


async def test_an_error_before_the_first_chunk_of_a_stream_is_an_answer(server: AnthropicServer) -> None:
    server.script = Script(pieces=[event("error", error={"type": "overloaded_error", "message": "Overloaded"})])
    response = await ask(server.url, stream=True)
    assert response.status >= 500
    assert "Overloaded" in (await said(response))["error"]["message"]
