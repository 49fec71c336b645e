"""A backend that answers wrongly, before one that answers well: the client gets the good answer, by every endpoint,
whole and streamed, checked and unchecked; and the gateway's own code fails nowhere."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.mutations import dumped
from tests.scripted import Turn, answer, json_answer
from tests.two_backends import (
    CHAT,
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    MESSAGES,
    House,
    chunk,
    event,
    failed_inside,
    well_answered,
    whole,
)
from tests.two_backends import built as built
from tests.two_backends import house as house

pytestmark = pytest.mark.asyncio(loop_scope="module")

# -- chats ------------------------------------------------------------------------------------------------------------

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
SAID: dict[str, Any] = {  # as a message, and as a delta
    "calls: text": {"tool_calls": "x"},
    "calls: object": {"tool_calls": {}},
    "calls: number": {"tool_calls": 5},
    "calls: [null]": {"tool_calls": [None]},
    "calls: [[]]": {"tool_calls": [[]]},
    "calls: ['x']": {"tool_calls": ["x"]},
    "content: 1.5": {"content": 1.5},
    "content: {}": {"content": {}},
    "content: true": {"content": True},
    "content: [null]": {"content": [None]},
    "content: ['x']": {"content": ["x"]},
    "reasoning: []": {"content": "x", "reasoning": ["x"]},
    "reasoning_content: {}": {"content": "x", "reasoning_content": {"a": 1}},
    "refusal: 5": {"refusal": 5},
    "role: {}": {"role": {}, "content": "x"},
    "function: null": {"tool_calls": [{**CALL, "function": None}]},
    "function: text": {"tool_calls": [{**CALL, "function": "now"}]},
    "name: 5": {"tool_calls": [{**CALL, "function": {"name": 5, "arguments": "{}"}}]},
    "arguments: []": {"tool_calls": [{**CALL, "function": {"name": "now", "arguments": []}}]},
    "arguments: 5": {"tool_calls": [{**CALL, "function": {"name": "now", "arguments": 5}}]},
    "id: {}": {"tool_calls": [{**CALL, "id": {}}]},
    "function_call: text": {"function_call": "now"},
    "a list": [],
    "a text": "x",
    "a number": 7,
}
CHOICES: dict[str, Any] = {  # as the whole of `choices`
    "{}": {},
    "[[]]": [[]],
    "[null]": [None],
    "text": "x",
    "number": 5,
    "finish: {}": [{"index": 0, "message": {"content": "x"}, "delta": {"content": "x"}, "finish_reason": {}}],
    "finish: 5": [{"index": 0, "message": {"content": "x"}, "delta": {"content": "x"}, "finish_reason": 5}],
}
BODIES: dict[str, bytes] = {
    "null": b"null",
    "a number": b"5",
    "a text": b'"x"',
    "a list": b"[]",
    "an object": b"{}",
    "deep": b"[" * 200_000,
    "deep inside": b'{"choices":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "error: number": b'{"error": 5}',
    "error: list": b'{"error": [[]]}',
    "error: a long number": b'{"error": {"message": 1' + b"0" * 400 + b"}}",
    "error: true": b'{"error": true}',
}
WAYS = [(path, stream, tools) for path in (CHAT, MESSAGES) for stream in (False, True) for tools in (False, True)]
BAD: dict[str, tuple[bytes, bytes]] = {  # whole; as the first event
    **{name: (dumped(whole(said)), event(chunk(said))) for name, said in SAID.items()},
    **{
        f"choices: {name}": (dumped(whole({}) | {"choices": odd}), event(chunk({}) | {"choices": odd}))
        for name, odd in CHOICES.items()
    },
    **{f"all of it: {name}": (body, event(body)) for name, body in BODIES.items() if not name.startswith("deep")},
}


@pytest.mark.parametrize("name", BAD)
async def test_the_next_backend_is_asked(house: House, name: str) -> None:
    """By both dialects, whole and streamed, with tools and without."""
    body, first = BAD[name]

    async def wrong(turn: Turn) -> None:
        if turn.json.get("stream"):
            await turn.stream(first, event(chunk({}, "stop")), DONE)
        else:
            await turn.send(answer(body))

    before = failed_inside(house)
    for path, stream, tools in WAYS:
        house.gateway.gateway.fleet["a"].evidence.succeeded()
        house.a.play(wrong)
        reply = await house.chat(path, stream=stream, tools=tools)
        well_answered(reply, path, stream=stream)
        assert house.a.turns, "it was asked first"
    assert failed_inside(house) == before


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_as_an_object_are_written_as_text(house: House, stream: bool, tools: bool) -> None:
    said = {"tool_calls": [{**CALL, "function": {"name": "now", "arguments": {"zone": "UTC"}}}]}
    events = (
        event(chunk({"role": "assistant", "content": ""})),
        event(chunk(said)),
        event(chunk({}, "tool_calls")),
        DONE,
    )
    house.a.play(lambda turn: turn.stream(*events) if turn.json.get("stream") else turn.send(json_answer(whole(said))))
    for path in (CHAT, MESSAGES):
        house.gateway.gateway.fleet["a"].evidence.succeeded()
        reply = await house.chat(path, stream=stream, tools=tools)
        assert (reply.status, reply.ended, reply.headers["x-gateway-backend"]) == (200, True, "a")
        text = reply.body.replace(b" ", b"")
        assert rb"{\"zone\":\"UTC\"}" in text or b'"input":{"zone":"UTC"}' in text


@pytest.mark.parametrize("name", ["deep", "deep inside"])
async def test_an_answer_that_is_nested_too_deeply_is_a_failure(house: House, name: str) -> None:
    async def wrong(turn: Turn) -> None:
        await turn.send(answer(BODIES[name]))

    house.a.play(wrong)
    well_answered(await house.chat(CHAT, stream=False, tools=True), CHAT, stream=False)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("name", ["calls: text", "arguments: []", "function: null", "a list", "content: {}"])
async def test_after_content_the_stream_is_interrupted(house: House, path: str, name: str) -> None:
    started = event(chunk({"role": "assistant", "content": ""})), event(chunk({"content": "hel"}))
    house.a.play(lambda turn: turn.stream(*started, event(chunk(SAID[name])), event(chunk({}, "stop")), DONE))
    reply = await house.chat(path, stream=True, tools=True)
    assert (reply.status, reply.ended) == (200, False)
    assert b"stream_interrupted" in reply.body
    assert b"hel" in reply.body
    assert not house.b.turns


@pytest.mark.parametrize("name", SAID)
async def test_unread_bytes_never_fail_inside(house: House, name: str) -> None:
    """Once content has come, events are passed on unparsed where nothing is checked: whatever they are, the reply ends
    whole or interrupted."""
    started = [event(chunk({"content": text})) for text in "abc"]
    before = failed_inside(house)
    for path in (CHAT, MESSAGES):
        house.gateway.gateway.fleet["a"].evidence.succeeded()
        house.a.play(lambda turn: turn.stream(*started, event(chunk(SAID[name])), event(chunk({}, "stop")), DONE))
        reply = await house.chat(path, stream=True, tools=False)
        assert reply.status == 200
        assert reply.ended or b"stream_interrupted" in reply.body
        assert b"internal_error" not in reply.body
    assert failed_inside(house) == before


async def test_ten_megabytes_in_one_string_are_passed_on(house: House) -> None:
    long = "x" * 10_000_000
    house.a.play(lambda turn: turn.send(json_answer(whole({"role": "assistant", "content": long}))))
    began = time.monotonic()
    reply = await house.chat(CHAT, stream=False, tools=True)
    assert reply.json["choices"][0]["message"]["content"] == long
    assert time.monotonic() - began < 20.0


async def test_other_names_for_thoughts_are_no_way_around(house: House) -> None:
    house.a.play(lambda turn: turn.send(json_answer(whole({"content": "x", "reasoning": 5}))))
    reply = await house.ask(CHAT, model="named", messages=[{"role": "user", "content": "hi"}])
    well_answered(reply, CHAT, stream=False)


# -- other endpoints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [5, {}, [], True], ids=repr)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_completion_that_is_no_text(house: House, text: Any, stream: bool) -> None:
    body = {"id": "c", "model": "m", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
    house.a.play(lambda turn: turn.stream(event(body), DONE) if stream else turn.send(json_answer(body)))
    well_answered(await house.ask(COMPLETIONS, prompt="x", stream=stream), COMPLETIONS, stream=stream)


@pytest.mark.parametrize("data", [None, {}, "x", 5, [None], [5], ["x"], [[]]], ids=repr)
async def test_embeddings_that_are_none(house: House, data: Any) -> None:
    house.a.play(lambda turn: turn.send(json_answer({"object": "list", "data": data, "model": "m"})))
    reply = await house.ask(EMBEDDINGS, input="x")
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "b")


@pytest.mark.parametrize("count", [-1, 1.5, "5", None, [], 2**63, 10**400, True], ids=lambda c: str(c)[:10])
async def test_a_count_of_tokens_that_is_none_is_estimated(house: House, count: Any) -> None:
    house.a.play(lambda turn: turn.send(json_answer({"count": count})))
    house.b.play(lambda turn: turn.send(json_answer({"count": count})))
    body = {"messages": [{"role": "user", "content": "hello " * 20}], "max_tokens": 5}
    reply = await house.ask("/v1/messages/count_tokens", **body)
    assert reply.status == 200
    assert 0 < reply.json["input_tokens"] < 1000


@pytest.mark.parametrize(
    "line",
    [
        {"message": "x", "done": True},
        {"message": {"tool_calls": "x"}, "done": True},
        {"message": {"tool_calls": [None]}, "done": True},
        {"message": {"tool_calls": [{"function": None}]}, "done": True},
        {"message": {"tool_calls": [{"function": {"name": "now", "arguments": 5}}]}, "done": True},
        {"message": {"content": 1.5}, "done": True},
        {"message": {"content": "x"}, "done": "x"},
        {"message": {"content": "x"}, "done": True, "done_reason": {}},
        {"message": {"content": "x"}, "done": True, "logprobs": "x"},
        {"error": {"message": 10**400}},
        [],
        5,
        "x",
    ],
    ids=lambda line: json.dumps(line)[:40],
)
async def test_mistyped_answers_of_ollama_are_failures(house: House, line: Any) -> None:
    house.o.play(lambda turn: turn.send(answer(dumped(line) + b"\n", "200 OK", "application/x-ndjson")))
    for stream in (False, True):
        house.gateway.gateway.fleet["o"].evidence.succeeded()
        reply = await house.chat(CHAT, stream=stream, tools=True, model="ollamas")
        well_answered(reply, CHAT, stream=stream)
    asked = [turn for turn in house.o.turns if not turn.headers["x-request-id"].startswith("probe-")]
    assert len(asked) == 2
