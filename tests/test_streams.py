"""Relayed streams, byte by byte: what is kept, what is added, how they begin, and how they end when they break."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway import reply as gateway_reply
from gateway.upstream.sse import Framer
from tests.scripted import END, SSE_HEAD, RawReply, Script, ScriptedBackend, Turn, chunked, raw_post, scripted
from tests.scripted import answer as http_answer
from tests.support import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

CAPTURES = Path(__file__).parent / "data" / "captures"
DONE = b"data: [DONE]\n\n"
INTERRUPTED = (
    b'data: {"error":{"message":"upstream connect error: backend reset","type":"server_error","param":null,'
    b'"code":"stream_interrupted"}}\n\n'
)
ROUTES = """
defaults: {{timeouts: {{idle: 300ms, first_byte: 30s}}}}
backends:
  s: {{url: "{s}"}}
  t: {{url: "{t}"}}
  u: {{url: "{u}"}}
  late: {{url: "{s}", timeouts: {{hold: 100ms}}}}
aliases:
  chat: [s]
  pair: [s, t, u]
  slow: [late, t]
"""


@dataclass
class Stage:
    """`s`, `t` and `u` are scripted. Alias `chat` is s; `pair` is s, then t, then u; `slow` is s with a short `hold`,
    then t."""

    gateway: RunningGateway
    s: ScriptedBackend
    t: ScriptedBackend
    u: ScriptedBackend

    async def ask(self, model: str = "chat", path: str = "/v1/chat/completions", **more: Any) -> RawReply:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": True, **more}
        return await raw_post(self.gateway.url, body, path)

    async def until_beating(self) -> None:
        """The one request under way has had its status committed early."""
        await self.gateway.until(
            lambda: any(r.reply is not None and r.reply.early for r in self.gateway.gateway.active)
        )

    def attempts(self, backend: str, outcome: str) -> float:
        return self.gateway.metric("gateway_attempts_total", backend=backend, outcome=outcome)


async def unexpected(turn: Turn) -> None:
    raise AssertionError("nobody was to ask this backend")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def theatre() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        s, t, u = [await stack.enter_async_context(scripted(unexpected)) for _ in "stu"]
        gateway = await stack.enter_async_context(running_gateway(ROUTES.format(s=s.url, t=t.url, u=u.url)))
        await gateway.until_ready("s", "t", "u", "late")
        yield Stage(gateway, s, t, u)


@pytest.fixture
def stage(theatre: Stage) -> Stage:
    """All backends healthy, and none expects to be asked."""
    for state in theatre.gateway.gateway.fleet.states.values():
        state.succeeded()
    for backend in (theatre.s, theatre.t, theatre.u):
        backend.play(unexpected)
    return theatre


# -- what the backends say --------------------------------------------------------------------------------------------


def captured(name: str) -> list[bytes]:
    """The events of a stream as vLLM 0.32 sent them, [DONE] included."""
    body = (CAPTURES / f"{name}.txt").read_bytes().partition(b"### ---- response")[2].replace(b"\r\n", b"\n")
    events = body.partition(b"\n\n")[2]
    return Framer().feed(events[: events.index(DONE) + len(DONE)])


def event(delta: object, finish: str | None = None, index: int = 0, **head: object) -> bytes:
    chunk = {"id": "up-1", "object": "chat.completion.chunk", "created": 2, "model": "served/model", **head}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return b"data: " + json.dumps({**chunk, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
HELLO = event({"content": "hello"})
THOUGHT = event({"reasoning": "hm"})
STOP = event({}, "stop")
USAGE = b'data: {"id":"up-1","created":2,"model":"served/model","choices":[],"usage":{"prompt_tokens":3}}\n\n'
ERROR = b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\n'


def renamed(*events: bytes, model: bytes = b"chat") -> bytes:
    return b"".join(events).replace(b'"model":"served/model"', b'"model":"' + model + b'"')


def says(*events: bytes) -> Script:
    """A whole stream of these events."""

    async def script(turn: Turn) -> None:
        await turn.stream(*events)

    return script


def sends(*pieces: bytes, end: bool = True) -> Script:
    """A stream whose bytes come in these pieces."""

    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD)
        for piece in pieces:
            await turn.send(chunked(piece))
            await asyncio.sleep(0)
        if end:
            await turn.send(END)

    return script


GOOD = says(ROLE, HELLO, STOP, DONE)


# -- the same bytes ---------------------------------------------------------------------------------------------------

STREAMS: dict[str, dict[str, Any]] = {
    "chat_stream": {},
    "chat_stream_length": {},
    "chat_stream_usage": {"stream_options": {"include_usage": True}},
    "chat_stream_usage_cont": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "chat_n2_stream": {"n": 2, "stream_options": {"include_usage": True}},
    "completions_stream": {"prompt": "x", "stream_options": {"include_usage": True}},
    "reason_stream": {"stream_options": {"include_usage": True}},
    "reason_thinking_off_stream": {},
    "tool_auto_scripted_stream": {"stream_options": {"include_usage": True}},
    "tool_auto_parallel_scripted_stream": {},
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_captured_stream_arrives_byte_for_byte_but_for_its_model(stage: Stage, name: str) -> None:
    events = captured(name)
    stage.s.play(says(*events))
    path = "/v1/completions" if name.startswith("completions") else "/v1/chat/completions"
    reply = await stage.ask(path=path, **STREAMS[name])
    assert reply.body == b"".join(events).replace(b'"model":"tiny"', b'"model":"chat"')
    assert (reply.status, reply.ended) == (200, True)


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_pieces_of_any_size_make_the_same_stream(stage: Stage, size: int) -> None:
    data = b"".join(captured("chat_stream"))
    stage.s.play(sends(*(data[i : i + size] for i in range(0, len(data), size))))
    assert (await stage.ask()).body == data.replace(b'"model":"tiny"', b'"model":"chat"')


async def test_unknown_fields_go_through_both_ways(stage: Stage) -> None:
    odd: dict[str, Any] = {
        "chat_template_kwargs": {"enable_thinking": False},
        "top_k": 20,
        "structured_outputs": {"choice": ["a", "b"]},
        "vllm_xargs": {"script": "x"},
        "return_token_ids": True,
        "unheard_of": [None, {"deep": 1.5}],
    }
    first = event({"role": "assistant", "content": ""}, prompt_token_ids=[1, 2], unheard_of={"a": 1})
    said = b'data: {"id":"up-1","model":"served/model","created":2,"choices":[{"index":0,"delta":{"content":"x"},'
    said += b'"finish_reason":null,"token_ids":[7],"odd":1.50}]}\n\n'
    stage.s.play(says(first, said, STOP, DONE))
    reply = await stage.ask(**odd)
    assert reply.body == renamed(first, said, STOP, DONE)
    (turn,) = stage.s.turns
    assert {name: turn.json[name] for name in odd} == odd
    assert turn.json["model"] == "served/model"


async def test_a_whole_answer_arrives_byte_for_byte_but_for_its_model(stage: Stage) -> None:
    body = (
        b'{"id":"x", "model":"served/model","choices":[{"index":0,"message":{"content":"\\u00e9 \\"model\\":\\"x\\""},'
        b'"finish_reason":"stop","token_ids":[1]}],"prompt_token_ids":[1,2],"usage":{"prompt_tokens":3},"odd":1.50}'
    )

    async def script(turn: Turn) -> None:
        await turn.send(http_answer(body, "200 OK", "application/json", "server: up", "set-cookie: a=b"))

    stage.s.play(script)
    reply = await stage.ask(stream=False)
    assert reply.body == body.replace(b'"model":"served/model"', b'"model":"chat"')
    assert (reply.headers["content-type"], reply.ended) == ("application/json", True)
    assert {"server", "set-cookie"}.isdisjoint(reply.headers)


async def test_a_streams_headers_are_ours(stage: Stage) -> None:
    stage.s.play(GOOD)
    headers = (await stage.ask()).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert (headers["x-gateway-alias"], headers["x-gateway-backend"]) == ("chat", "s")
    assert headers["x-gateway-attempts"] == "1"
    assert headers["x-request-id"] == stage.s.turns[0].headers["x-request-id"]
    assert "x-gateway-committed" not in headers


async def test_content_does_not_wait_for_what_follows(stage: Stage) -> None:
    arrived = asyncio.Event()

    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO))
        async with asyncio.timeout(5):
            await arrived.wait()
        await turn.send(chunked(STOP, DONE) + END)

    stage.s.play(script)
    ask = {"model": "chat", "messages": [], "stream": True}
    async with stage.gateway.client.stream("POST", "/v1/chat/completions", json=ask) as response:
        pieces = response.aiter_raw()
        assert b"hello" in await anext(pieces)
        arrived.set()
        assert (b"".join([p async for p in pieces])).endswith(DONE)


# -- usage ------------------------------------------------------------------------------------------------------------


async def test_usage_is_asked_for_and_taken_out_again(stage: Stage) -> None:
    stage.s.play(says(ROLE, HELLO, STOP, USAGE, DONE))
    before = stage.gateway.metric("gateway_tokens_total", client="open", alias="chat", backend="s", kind="prompt")
    assert (await stage.ask()).body == renamed(ROLE, HELLO, STOP, DONE)
    assert stage.s.turns[0].json["stream_options"] == {"include_usage": True}
    after = stage.gateway.metric("gateway_tokens_total", client="open", alias="chat", backend="s", kind="prompt")
    assert after - before == 3


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}])
async def test_usage_that_the_client_asked_for_is_kept(stage: Stage, options: dict[str, bool]) -> None:
    stage.s.play(says(ROLE, HELLO, STOP, USAGE, DONE))
    assert (await stage.ask(stream_options=options)).body == renamed(ROLE, HELLO, STOP, USAGE, DONE)
    assert stage.s.turns[0].json["stream_options"] == options


async def test_without_stream_no_stream_options_are_sent(stage: Stage) -> None:
    stage.s.play(GOOD)
    await stage.ask(stream=False)
    assert "stream_options" not in stage.s.turns[0].json


# -- the status goes out before the content ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "said"),
    [("/v1/chat/completions", {"delta": {}}), ("/v1/completions", {"text": ""})],
    ids=["chat", "completions"],
)
async def test_a_backend_that_takes_its_time_is_bridged_with_heartbeats(
    stage: Stage, path: str, said: dict[str, Any]
) -> None:
    async def script(turn: Turn) -> None:
        await stage.until_beating()
        if path == "/v1/completions":
            text = b'data: {"id":"cmpl-9","created":9,"model":"served/model","choices":[{"index":0,"text":"hello",'
            await turn.stream(text + b'"finish_reason":"stop"}]}\n\n', DONE)
        else:
            await turn.stream(ROLE, HELLO, STOP, DONE)

    stage.s.play(script)
    reply = await stage.ask("slow", path, prompt="x")
    assert (reply.status, reply.headers["x-gateway-committed"]) == (200, "early")
    assert "x-gateway-backend" not in reply.headers
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    beat = reply.chunks[0]
    kind, prefix = ("chat.completion.chunk", "chatcmpl-") if "chat" in path else ("text_completion", "cmpl-")
    assert beat == {
        "id": prefix + reply.headers["x-request-id"],
        "object": kind,
        "created": beat["created"],
        "model": "slow",
        "choices": [{"index": 0, **said, "finish_reason": None}],
    }
    assert reply.events[1] == b": x-gateway backend=late; attempts=1; queue-ms=0"
    assert reply.text == "hello"
    assert {(c["id"], c["created"], c["model"]) for c in reply.chunks} == {(beat["id"], beat["created"], "slow")}
    assert reply.ended
    assert reply.body.endswith(DONE)


async def test_after_an_early_status_another_backend_still_takes_over(stage: Stage) -> None:
    async def script(turn: Turn) -> None:
        await stage.until_beating()
        turn.reset()

    stage.s.play(script)
    stage.t.play(GOOD)
    reply = await stage.ask("slow")
    assert reply.events[1] == b": x-gateway backend=t; attempts=2; queue-ms=0; fallback=failed"
    assert (reply.text, reply.ended) == ("hello", True)


async def test_after_an_early_status_the_final_failure_is_told_in_the_stream(stage: Stage) -> None:
    async def script(turn: Turn) -> None:
        await stage.until_beating()
        turn.reset()

    async def refuse(turn: Turn) -> None:
        await turn.send(http_answer(b"{}", "500 Internal Server Error"))

    stage.s.play(script)
    stage.t.play(refuse)
    reply = await stage.ask("slow")
    assert reply.status == 200
    assert reply.chunks[-1]["error"]["code"] == "upstream_error"
    assert not reply.ended
    assert DONE not in reply.body


async def test_a_quick_answer_is_not_committed_early(stage: Stage) -> None:
    stage.s.play(GOOD)
    reply = await stage.ask("slow")
    assert reply.headers["x-gateway-backend"] == "late"
    assert reply.body == renamed(ROLE, HELLO, STOP, DONE, model=b"slow")


async def test_without_stream_nothing_goes_out_early(stage: Stage) -> None:
    async def script(turn: Turn) -> None:
        await asyncio.sleep(0.25)  # longer than `hold`
        turn.reset()

    async def refuse(turn: Turn) -> None:
        await turn.send(http_answer(b"{}", "500 Internal Server Error"))

    stage.s.play(script)
    stage.t.play(refuse)
    assert (await stage.ask("slow", stream=False)).status == 502


async def test_heartbeats_go_on_while_a_backend_is_silent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_reply, "HEARTBEAT", 0.05)

    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO))
        await asyncio.sleep(0.22)
        await turn.send(chunked(STOP, DONE) + END)

    stage.s.play(script)
    reply = await stage.ask()
    beats = [c for c in reply.chunks if c["choices"][0]["delta"] == {} and c["choices"][0]["finish_reason"] is None]
    assert 2 <= len(beats) <= 5
    assert {c["id"] for c in reply.chunks} == {"up-1"}


# -- reasoning --------------------------------------------------------------------------------------------------------


async def test_thoughts_stream_before_content_and_another_backend_may_go_on(stage: Stage) -> None:
    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, THOUGHT))
        await stage.gateway.until(
            lambda: any(r.reply is not None and r.reply.committed for r in stage.gateway.gateway.active)
        )
        turn.reset()

    other = [e.replace(b"up-1", b"up-9").replace(b'"created":2', b'"created":7') for e in (ROLE, THOUGHT, HELLO, STOP)]
    stage.s.play(script)
    stage.t.play(says(*other, DONE))
    reply = await stage.ask("pair")
    assert reply.headers["x-gateway-backend"] == "s"
    assert b": x-gateway backend=t; attempts=2; queue-ms=0; fallback=failed" in reply.events
    assert [c["choices"][0]["delta"] for c in reply.chunks] == [
        {"role": "assistant", "content": ""},
        {"reasoning": "hm"},
        {"reasoning": "hm"},
        {"content": "hello"},
        {},
    ]
    assert {(c["id"], c["created"], c["model"]) for c in reply.chunks} == {("up-1", 2, "pair")}
    assert reply.ended


async def test_thoughts_that_break_for_good_are_told_in_the_stream(stage: Stage) -> None:
    stage.s.play(sends(ROLE, THOUGHT))
    reply = await stage.ask()
    assert [c.get("error", {}).get("code") for c in reply.chunks] == [None, None, "upstream_error"]
    assert not reply.ended
    assert DONE not in reply.body


async def test_thoughts_alone_are_an_answer(stage: Stage) -> None:
    stage.s.play(says(ROLE, THOUGHT, STOP, DONE))
    assert (await stage.ask("pair")).body == renamed(ROLE, THOUGHT, STOP, DONE, model=b"pair")


# -- breaking after content -------------------------------------------------------------------------------------------


async def close(turn: Turn) -> None:
    turn.close()


async def reset(turn: Turn) -> None:
    turn.reset()


async def silence(turn: Turn) -> None:
    await turn.until_lost()


async def comments_only(turn: Turn) -> None:
    while True:  # until the gateway closes the connection: then sending fails
        await turn.send(chunked(b": keep-alive\n\n"))
        await asyncio.sleep(0.02)


def then(*events: bytes) -> Script:
    async def script(turn: Turn) -> None:
        await turn.send(chunked(*events) + END)

    return script


DEATHS: dict[str, Script] = {
    "closed": close,
    "reset": reset,
    "silent": silence,
    "comments only": comments_only,
    "ended without finish_reason": then(),
    "DONE without finish_reason": then(DONE),
    "error event": then(ERROR, DONE),
    "error event after finish_reason": then(STOP, ERROR, DONE),
    "abort": then(event({}, "abort"), DONE),
    "error as finish_reason": then(event({}, "error"), DONE),
    "half an event": then(b'data: {"id":"up-1","choices":[{"index":0,"del'),
}


@pytest.mark.parametrize("name", DEATHS)
async def test_a_stream_that_breaks_after_content_is_never_ended_as_if_whole(stage: Stage, name: str) -> None:
    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO))
        await stage.gateway.until(lambda: any(r.reply and r.reply.content for r in stage.gateway.gateway.active))
        await DEATHS[name](turn)

    interrupted = stage.attempts("s", "interrupted")
    stage.s.play(script)
    reply = await stage.ask("pair")
    assert reply.status == 200
    assert not reply.ended
    assert reply.body.startswith(renamed(ROLE, HELLO, model=b"pair"))
    assert reply.body.endswith(INTERRUPTED)
    assert DONE not in reply.body
    assert reply.body.count(b"error") == INTERRUPTED.count(b"error")
    assert stage.t.turns == []
    assert stage.gateway.gateway.fleet["s"].health.fails == 1
    assert stage.attempts("s", "interrupted") == interrupted + 1


async def test_an_error_event_is_the_end_whatever_follows(stage: Stage) -> None:
    stage.s.play(says(ROLE, HELLO, ERROR, HELLO, STOP, DONE))
    reply = await stage.ask()
    assert reply.body == renamed(ROLE, HELLO) + INTERRUPTED
    assert "EngineCore" in stage.gateway.gateway.fleet["s"].health.reason


async def test_a_completion_that_breaks_ends_the_same_way(stage: Stage) -> None:
    text = b'data: {"id":"c","model":"served/model","choices":[{"index":0,"text":"hello","finish_reason":null}]}\n\n'
    stage.s.play(says(text))
    reply = await stage.ask(path="/v1/completions", prompt="x")
    assert reply.body == renamed(text) + INTERRUPTED
    assert not reply.ended


async def test_with_n_2_one_choice_without_end_is_a_break(stage: Stage) -> None:
    stage.s.play(says(ROLE, HELLO, event({"content": "x"}, index=1), STOP, DONE))
    reply = await stage.ask(n=2)
    assert reply.body.endswith(INTERRUPTED)
    assert not reply.ended


async def test_with_n_2_every_choice_arrives(stage: Stage) -> None:
    events = [ROLE, HELLO, event({"content": "x"}, index=1), STOP, event({}, "length", index=1), DONE]
    stage.s.play(says(*events))
    reply = await stage.ask(n=2)
    assert reply.body == renamed(*events)
    assert reply.ended


# -- odd but whole ----------------------------------------------------------------------------------------------------


async def test_a_missing_done_is_added(stage: Stage) -> None:
    stage.s.play(says(ROLE, HELLO, STOP))
    reply = await stage.ask()
    assert reply.body == renamed(ROLE, HELLO, STOP, DONE)
    assert reply.ended


@pytest.mark.parametrize("missing", [b"\n", b"\n\n"])
async def test_the_last_blank_line_may_be_missing(stage: Stage, missing: bytes) -> None:
    stage.s.play(says(ROLE, HELLO, STOP.removesuffix(missing)))
    assert (await stage.ask()).body == renamed(ROLE, HELLO, STOP, DONE)


async def test_a_stream_with_crlf_is_read(stage: Stage) -> None:
    stage.s.play(says(*(e.replace(b"\n", b"\r\n") for e in (ROLE, HELLO, STOP, USAGE, DONE))))
    reply = await stage.ask()
    assert reply.body.replace(b"\r\n", b"\n") == renamed(ROLE, HELLO, STOP, DONE)
    assert reply.ended


async def test_comments_before_content_are_dropped_and_later_ones_kept(stage: Stage) -> None:
    note = b": keep-alive\n\n"
    stage.s.play(says(note, ROLE, note, HELLO, note, STOP, DONE))
    assert (await stage.ask()).body == renamed(ROLE, HELLO, note, STOP, DONE)


async def test_an_event_over_two_data_lines_is_one_event(stage: Stage) -> None:
    split = [e.replace(b',"created"', b',\ndata: "created"') for e in (ROLE, HELLO, STOP)]
    stage.s.play(says(*split, USAGE.replace(b',"created"', b',\ndata: "created"'), DONE))
    reply = await stage.ask()
    assert reply.body == renamed(*split, DONE)


async def test_gzip_is_undone_as_it_comes(stage: Stage) -> None:
    packer = zlib.compressobj(wbits=31)
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    pieces = [packer.compress(e) + packer.flush(zlib.Z_SYNC_FLUSH) for e in (ROLE, HELLO, STOP, DONE)]

    async def script(turn: Turn) -> None:
        assert turn.headers["accept-encoding"] == "identity"
        await turn.send(head + chunked(*pieces, packer.flush()) + END)

    stage.s.play(script)
    reply = await stage.ask()
    assert reply.body == renamed(ROLE, HELLO, STOP, DONE)
    assert "content-encoding" not in reply.headers


@pytest.mark.parametrize("odd", [b"data: {oops\n\n", b"data: text\n\n", b"data: [1]\n\n", b'data: {"a": "\xff"}\n\n'])
async def test_an_event_that_does_not_parse_is_relayed_as_it_is(stage: Stage, odd: bytes) -> None:
    stage.s.play(says(ROLE, HELLO, odd, STOP, DONE))
    reply = await stage.ask()
    assert reply.body == renamed(ROLE, HELLO, odd, STOP, DONE)
    assert reply.ended


async def test_an_unparsable_event_may_be_the_first(stage: Stage) -> None:
    stage.s.play(says(b"data: {oops\n\n", HELLO, STOP, DONE))
    reply = await stage.ask("pair")
    assert (reply.headers["x-gateway-backend"], reply.ended) == ("s", True)
    assert reply.body.startswith(b"data: {oops\n\n")


async def test_a_connection_is_used_again_after_a_whole_stream(stage: Stage) -> None:
    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO, STOP, DONE))
        await asyncio.sleep(0.02)
        await turn.send(END)  # a moment after [DONE], as real servers do

    stage.s.play(script)
    for _ in range(3):
        await stage.ask()
        await stage.gateway.until(stage.gateway.idle)
    assert len({turn.connection for turn in stage.s.turns}) == 1


# -- an empty answer --------------------------------------------------------------------------------------------------

WHOLE_EMPTY = {"model": "served/model", "choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}
WHOLE_GOOD = {"model": "served/model", "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}


async def empty(turn: Turn) -> None:
    if turn.json["stream"]:
        await turn.stream(ROLE, STOP, DONE)
    else:
        await turn.send(http_answer(json.dumps(WHOLE_EMPTY).encode()))


async def good(turn: Turn) -> None:
    if turn.json["stream"]:
        await turn.stream(ROLE, HELLO, STOP, DONE)
    else:
        await turn.send(http_answer(json.dumps(WHOLE_GOOD).encode()))


async def broken(turn: Turn) -> None:
    turn.reset()


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@both_ways
async def test_an_empty_answer_is_tried_on_one_other_backend(stage: Stage, stream: bool) -> None:
    stage.s.play(empty)
    stage.t.play(good)
    reply = await stage.ask("pair", stream=stream)
    assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-attempts"]) == ("t", "2")
    assert b"hello" in reply.body
    assert stage.gateway.gateway.fleet["s"].health.fails == 0


@both_ways
async def test_when_the_other_is_no_better_the_empty_answer_is_delivered(stage: Stage, stream: bool) -> None:
    stage.s.play(empty)
    stage.t.play(empty)
    reply = await stage.ask("pair", stream=stream)
    assert (reply.status, reply.ended) == (200, True)
    if stream:
        assert reply.body == renamed(ROLE, STOP, DONE, model=b"pair")
    else:
        assert reply.json == {**WHOLE_EMPTY, "model": "pair"}
    assert stage.u.turns == []


@both_ways
async def test_when_all_others_fail_the_empty_answer_is_delivered(stage: Stage, stream: bool) -> None:
    stage.s.play(empty)
    stage.t.play(broken)
    stage.u.play(broken)
    reply = await stage.ask("pair", stream=stream)
    assert (reply.status, reply.ended, reply.headers["x-gateway-backend"]) == (200, True, "s")
    assert b"hello" not in reply.body


@both_ways
async def test_the_only_backends_empty_answer_is_delivered(stage: Stage, stream: bool) -> None:
    stage.s.play(empty)
    reply = await stage.ask(stream=stream)
    assert (reply.status, reply.ended) == (200, True)
    assert len(stage.s.turns) == 1


@both_ways
async def test_an_answer_cut_to_nothing_by_its_limit_is_not_an_empty_one(stage: Stage, stream: bool) -> None:
    """`max_tokens: 1` may well leave nothing to show; another backend would do no better."""
    cut = STOP.replace(b'"stop"', b'"length"')
    assert cut != STOP

    async def limited(turn: Turn) -> None:
        if turn.json["stream"]:
            await turn.stream(ROLE, cut, DONE)
        else:
            text = json.dumps(WHOLE_EMPTY).replace('"stop"', '"length"')
            await turn.send(http_answer(text.encode()))

    stage.s.play(limited)
    stage.t.play(good)
    reply = await stage.ask("pair", stream=stream)
    assert (reply.status, reply.headers["x-gateway-backend"], reply.headers["x-gateway-attempts"]) == (200, "s", "1")
    assert b'"length"' in reply.body
