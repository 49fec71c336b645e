"""A backend that answers wrongly, before one that answers well: the client gets the good answer, by every endpoint,
whole and streamed, checked and unchecked; and the gateway's own code fails nowhere."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.mutations import dumped
from tests.scripted import (
    SSE_HEAD,
    RawReply,
    ScriptedBackend,
    Turn,
    answer,
    chunked,
    json_answer,
    raw_post,
    scripted,
)
from tests.support import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTES = """
defaults: {{timeouts: {{first_byte: 3s, idle: 3s}}, queue: {{max_wait: 0s}}}}
backends:
  a: {{url: "{a}"}}
  b: {{url: "{b}"}}
  o: {{url: "{o}", engine: ollama, model: m, context: 8192}}
aliases:
  pair: [a, b]
  named: {{use: [a, b], reasoning_field: both}}
  ollamas: [o, b]
"""
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
DONE = b"data: [DONE]\n\n"
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
MESSAGES_TOOLS = [{"name": "now", "input_schema": {"type": "object", "properties": {}}}]
GOOD_ID = "from-b"


def chunk(delta: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "up-1", "object": "chat.completion.chunk", "created": 2, "model": "m", "choices": [choice], **more}


def whole(message: Any, finish: Any = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "up-1", "object": "chat.completion", "created": 2, "model": "m", "choices": [choice], **more}


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else dumped(value)) + b"\n\n"


async def good(turn: Turn) -> None:
    """Whatever was asked."""
    asked = turn.json
    if "input" in asked:
        await turn.send(json_answer({"object": "list", "model": "m", "data": [{"index": 0, "embedding": [1.0]}]}))
    elif "prompt" in asked:
        text = {"index": 0, "text": GOOD_ID, "finish_reason": "stop"}
        body = {"id": "c", "model": "m", "choices": [text]}
        await (turn.stream(event(body), DONE) if asked.get("stream") else turn.send(json_answer(body)))
    elif asked.get("stream"):
        await turn.stream(event(chunk({"content": GOOD_ID})), event(chunk({}, "stop")), DONE)
    else:
        await turn.send(json_answer(whole({"role": "assistant", "content": GOOD_ID})))


@dataclass
class House:
    gateway: RunningGateway
    a: ScriptedBackend
    b: ScriptedBackend
    o: ScriptedBackend

    async def ask(self, path: str, **body: Any) -> RawReply:
        return await raw_post(self.gateway.url, {"model": "pair", **body}, path)

    async def chat(self, path: str, *, stream: bool, tools: bool, **more: Any) -> RawReply:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50, "stream": stream}
        if tools:
            body["tools"] = MESSAGES_TOOLS if path == MESSAGES else TOOLS
        return await self.ask(path, **body, **more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built() -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        a, b, o = [await stack.enter_async_context(scripted(good)) for _ in "abo"]
        routes = ROUTES.format(a=a.url, b=b.url, o=o.url)
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("a", "b")
        yield House(gateway, a, b, o)


@pytest.fixture
def house(built: House, caplog: pytest.LogCaptureFixture) -> House:
    """All well again; `b` answers. Nothing may fail inside the gateway."""
    for state in built.gateway.gateway.fleet.states.values():
        state.succeeded()
    for backend in (built.a, built.b, built.o):
        backend.play(good)
    caplog.set_level(logging.ERROR)
    return built


def failed_inside(house: House) -> float:
    return sum(house.gateway.gateway._failed().values())


def well_answered(reply: RawReply, path: str, *, stream: bool) -> None:
    assert (reply.status, reply.ended) == (200, True), reply.body
    assert reply.headers["x-gateway-backend"] == "b"
    assert GOOD_ID.encode() in reply.body
    assert b"internal_error" not in reply.body


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
    "arguments: {}": {"tool_calls": [{**CALL, "function": {"name": "now", "arguments": {}}}]},
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
        house.gateway.gateway.fleet["a"].succeeded()
        house.a.play(wrong)
        reply = await house.chat(path, stream=stream, tools=tools)
        well_answered(reply, path, stream=stream)
        assert house.a.turns, "it was asked first"
    assert failed_inside(house) == before


@pytest.mark.parametrize("name", ["deep", "deep inside"])
async def test_an_answer_that_is_nested_too_deeply_is_a_failure(house: House, name: str) -> None:
    async def wrong(turn: Turn) -> None:
        await turn.send(answer(BODIES[name]))

    house.a.play(wrong)
    well_answered(await house.chat(CHAT, stream=False, tools=True), CHAT, stream=False)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("name", ["calls: text", "arguments: {}", "function: null", "a list", "content: {}"])
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
        house.gateway.gateway.fleet["a"].succeeded()
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
async def test_what_ollama_says_wrongly(house: House, line: Any) -> None:
    house.o.play(lambda turn: turn.send(answer(dumped(line) + b"\n", "200 OK", "application/x-ndjson")))
    for stream in (False, True):
        house.gateway.gateway.fleet["o"].succeeded()
        reply = await house.chat(CHAT, stream=stream, tools=True, model="ollamas")
        well_answered(reply, CHAT, stream=stream)
    assert len(house.o.turns) == 2


# -- heads ------------------------------------------------------------------------------------------------------------

OK = json.dumps(whole({"role": "assistant", "content": "from-a"})).encode()
LENGTH = b"content-length: %d\r\n" % len(OK)
JSON = b"content-type: application/json\r\n"
HEADS: dict[str, bytes] = {
    "a header of a megabyte": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000_000 + b"\r\n" + LENGTH + b"\r\n" + OK,
    "a hundred thousand headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000 + LENGTH + b"\r\n" + OK,
    "a flood of 100": b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000 + b"HTTP/1.1 200 OK\r\n" + LENGTH + b"\r\n" + OK,
    "a long reason": b"HTTP/1.1 200 " + b"O" * 1_000_000 + b"\r\n" + LENGTH + b"\r\n" + OK,
    "101": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "204 with a body": b"HTTP/1.1 204 No Content\r\n" + JSON + LENGTH + b"\r\n" + OK,
    "304 with a body": b"HTTP/1.1 304 Not Modified\r\n" + JSON + LENGTH + b"\r\n" + OK,
    "302": b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    "999": b"HTTP/1.1 999 What\r\n" + JSON + LENGTH + b"\r\n" + OK,
    "600": b"HTTP/1.1 600 What\r\n" + JSON + LENGTH + b"\r\n" + OK,
    "status 0": b"HTTP/1.1 000 What\r\n" + LENGTH + b"\r\n" + OK,
    "a short body": b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n" % (len(OK) + 9) + OK,
    "two lengths": b"HTTP/1.1 200 OK\r\n" + LENGTH + b"content-length: 3\r\n\r\n" + OK,
    "no chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n" + OK,
    "a chunk without end": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(OK),
    "a huge chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n" + OK,
    "endless trailers": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunked(OK)
    + b"0\r\n"
    + b"x: y\r\n" * 100_000,
    "an endless trailer": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunked(OK)
    + b"0\r\nx: "
    + b"y" * 1_000_000,
    "an endless chunk extension": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x=" + b"y" * 1_000_000,
    "not HTTP": b"hello " * 1000,
    "an unknown encoding": b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\n" + LENGTH + b"\r\n" + OK,
    "no gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n" + LENGTH + b"\r\n" + OK,
}


@pytest.mark.parametrize("name", HEADS)
async def test_an_answer_that_is_no_http_is_a_failure_of_its_backend(house: House, name: str) -> None:
    async def wrong(turn: Turn) -> None:
        await turn.send(HEADS[name])
        turn.close()

    house.a.play(wrong)
    before, began = failed_inside(house), time.process_time()
    well_answered(await house.chat(CHAT, stream=False, tools=False), CHAT, stream=False)
    assert time.process_time() - began < 3.0
    assert failed_inside(house) == before


async def test_headers_of_a_backend_do_not_reach_the_client(house: House) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nset-cookie: a=b\r\nx-gateway-backend: z\r\n"
    body = dumped(whole({"role": "assistant", "content": "x"}, model="x\r\nset-cookie: c=d"))
    house.a.play(lambda turn: turn.send(head + b"content-length: %d\r\n\r\n" % len(body) + body))
    reply = await house.chat(CHAT, stream=False, tools=False)
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "a")
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("value", ["nan", "inf", "-5", "1e400", "9" * 5000, "Thu, 01 Jan 0001 00:00:00 -0000", "x\x80"])
async def test_an_odd_retry_after_is_bounded(house: House, value: str) -> None:
    answered = answer(b"{}", "429 Too Many Requests", "application/json", f"retry-after: {value}")
    for backend in (house.a, house.b):
        backend.play(lambda turn: turn.send(answered))
    try:
        reply = await house.ask(CHAT, messages=[{"role": "user", "content": "hi"}], model="pair")
    finally:
        for state in house.gateway.gateway.fleet.states.values():
            state.cooldown_until = 0.0
    assert reply.status in (429, 503)
    assert 0 < int(reply.headers["retry-after"]) <= 600


async def test_what_makes_our_own_reader_fail_is_left_for_the_next_backend(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect of ours, made for the test: logged with its traceback, counted, and the next candidate is asked."""
    from gateway.upstream.whole import read_whole

    def broken(body: bytes, *more: Any) -> Any:
        if b"from-a" in body:
            raise KeyError("a defect")
        return read_whole(body, *more)

    monkeypatch.setattr("gateway.attempt.read_whole", broken)
    house.a.play(lambda turn: turn.send(answer(OK)))
    before = house.gateway.metric("gateway_internal_failures_total", part="answer")
    well_answered(await house.chat(CHAT, stream=False, tools=False), CHAT, stream=False)
    assert house.gateway.metric("gateway_internal_failures_total", part="answer") == before + 1
    assert any(record.exc_info and "reading what a answered" in record.getMessage() for record in caplog.records)


async def test_the_same_in_a_stream_after_content(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.streaming import StreamTrack

    real = StreamTrack.take

    def broken(self: StreamTrack, events: Any) -> bytes:
        if any(b"BOOM" in one for one in events):
            raise IndexError("a defect")
        return real(self, events)

    monkeypatch.setattr(StreamTrack, "take", broken)

    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(event(chunk({"content": "hel"}))))
        await house.gateway.until(lambda: any(r.reply and r.reply.content for r in house.gateway.gateway.active))
        await turn.send(chunked(event(chunk({"content": "BOOM"}))))
        await turn.until_lost()

    house.a.play(script)
    async with asyncio.timeout(20):
        reply = await house.chat(CHAT, stream=True, tools=False)
    assert b"stream_interrupted" in reply.body
    assert not reply.ended
