"""What a request holds is freed when it ends, and its connection when it is lost. Nothing waits for a garbage
collection, which comes after thousands of new objects: bodies that came meanwhile would fill the memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from gateway.admission.backend_queue import Waiter
from gateway.errors import GatewayError
from gateway.http.connection import Connection
from simulator import SimVllm
from tests.chaos_hostile import DEEP, STREAMS, WHOLE
from tests.garbage import garbage, no_collection
from tests.one_backend import ask, one_backend, under_way
from tests.proxy.house import event, said
from tests.raw_client import RawClient, chat, post_bytes, raw_client
from tests.scripted import SSE_HEAD, Script, Turn, chunked, json_answer, scripted
from tests.support import RunningGateway, running_gateway
from tests.waiting import turns

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
REQUESTS: dict[str, dict[str, Any]] = {
    "a whole answer": {},
    "a stream": {"stream": True},
    "a tool call": {"tools": [TOOL], "tool_choice": "required"},
    "a streamed tool call": {"tools": [TOOL], "tool_choice": "required", "stream": True},
    "no such model": {"model": "nobody"},
    "a body that cannot be read": {"messages": 5},
}
FORM = b"--x\r\ncontent-disposition: form-data; name=model\r\n\r\na\r\n--x--\r\n"
POSTED: dict[str, bytes] = {
    "a chat": post_bytes(CHAT, chat()),
    "a stream": post_bytes(CHAT, chat(stream=True)),
    "a large chat": post_bytes(CHAT, chat(said="x" * 2_000_000)),
    "a message": post_bytes(MESSAGES, chat(max_tokens=9)),
    "a streamed message": post_bytes(MESSAGES, chat(max_tokens=9, stream=True)),
    "a response": post_bytes(RESPONSES, {"model": "a", "input": "hello"}),
    "a page": b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n",
    "no such page": b"GET /nowhere HTTP/1.1\r\nhost: gateway\r\n\r\n",
    "a body that nests too deep": b"POST %s HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%s"
    % (CHAT.encode(), len(DEEP), DEEP),
    "a body that is too large": b"POST %s HTTP/1.1\r\nhost: g\r\ncontent-length: 999999999999\r\n\r\nx" % CHAT.encode(),
    "a body that is no gzip": b"POST %s HTTP/1.1\r\nhost: g\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"
    % CHAT.encode(),
    "a chunk that is none": b"POST %s HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n" % CHAT.encode(),
    "a head that is none": b"\x00\x01\x02\r\n\r\n",
    "a form": b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: g\r\ncontent-type: multipart/form-data; boundary=x\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(FORM), FORM),
    "a form that is none": b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: g\r\n"
    b"content-type: multipart/form-data; boundary=x\r\ncontent-length: 9\r\n\r\n--x\r\nabcd",
}  # fmt: skip
HALF: dict[str, bytes] = {
    "of a head": POSTED["a chat"][:30],
    "of a chat": POSTED["a large chat"][:1_000_000],
    "of a page's body": post_bytes("/v1/messages/count_tokens", chat())[:-5],
}


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    with no_collection():
        yield


async def left(gateway: RunningGateway) -> list[str]:
    """What is left of requests and connections that have ended."""
    await gateway.until(lambda: gateway.idle() and not gateway.server.server_state.tasks)
    await turns(20)  # the last task lets go of its exchange
    return garbage()


async def some_of_answer(client: RawClient) -> bytes:
    """Read until the answer is there, or the first part of a stream. b"" = the connection is closed."""
    seen = b""
    async with asyncio.timeout(5):
        while b"\r\n\r\n" not in seen or (b"chunked" in seen and b"\n\n\r\n" not in seen):
            data = await client.reader.read(65536)
            if not data:
                break
            seen += data
    return seen


async def leave(gateway: RunningGateway, client: RawClient) -> None:
    client.close()
    await gateway.until(lambda: not gateway.server.server_state.connections)


@asynccontextmanager
async def simulated() -> AsyncIterator[RunningGateway]:
    async with one_backend(SimVllm("a"), "tool_parser: hermes") as gateway:
        await gateway.until_ready("a")
        await ask(gateway)  # what is built with the first request stays
        await gateway.client.aclose()
        await gateway.until(lambda: not gateway.server.server_state.connections)
        assert await left(gateway) is not None
        yield gateway


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
async def test_nothing_of_an_answered_request_stays(asked: dict[str, Any]) -> None:
    async with one_backend(SimVllm("a"), "tool_parser: hermes") as gateway:
        await gateway.until_ready("a")
        await ask(gateway)
        await left(gateway)
        for _ in range(3):
            await ask(gateway, **asked)
        assert await left(gateway) == []


async def test_nothing_of_a_request_whose_client_has_left_stays() -> None:
    sim = SimVllm("a")
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        await ask(gateway)
        await left(gateway)
        sim.fault("hang_before")
        async with under_way(gateway, sim):
            assert sim.inflight == 1
        assert await left(gateway) == []


@pytest.mark.parametrize("sent", POSTED.values(), ids=POSTED)
async def test_nothing_of_a_connection_stays_that_closes_behind_its_answer(sent: bytes) -> None:
    async with simulated() as gateway:
        async with raw_client(gateway.url) as client:
            await client.send(sent)
            assert await some_of_answer(client)
            await leave(gateway, client)
        assert await left(gateway) == []


@pytest.mark.parametrize("sent", HALF.values(), ids=HALF)
async def test_nothing_of_a_connection_stays_that_closes_in_a_request(sent: bytes) -> None:
    async with simulated() as gateway:
        async with raw_client(gateway.url) as client:
            await client.send(sent)
            await gateway.until(lambda: bool(gateway.server.server_state.connections))
            await leave(gateway, client)
        assert await left(gateway) == []


async def test_nothing_of_a_client_stays_that_is_not_known() -> None:
    async with running_gateway(
        "clients: {c: {key: k}}\nbackends: {a: {url: 'http://127.0.0.1:9', model: m}}"
    ) as gateway:
        for _ in range(2):  # the first warms up
            garbage()
            async with raw_client(gateway.url) as client:
                await client.send(POSTED["a large chat"][:100_000])
                assert b" 401 " in await some_of_answer(client)
                await leave(gateway, client)
        assert await left(gateway) == []


# -- backends that fail -----------------------------------------------------------------------------------------------

ROUTES = """
server: {{max_body: 100KB}}
defaults: {{health: {{every: none}}, queue: {{max_wait: 200ms}}, timeouts: {{first_byte: 300ms, idle: 300ms}}}}
backends:
  a: {{url: "{a}", model: served/model, context: 131072, slots: 1}}
  b: {{url: "{b}", model: served/model, context: 131072}}
aliases:
  chain: [a, b]
  both: {{ask_all: [a, b]}}
  resumed: {{use: [a, b], resume: true}}
"""


def saying(text: str) -> bytes:
    return json_answer(said(text))


async def answer_well(turn: Turn) -> None:
    if turn.json.get("stream"):
        await turn.stream(event({"content": "hello"}), event({}, "stop"), b"data: [DONE]\n\n")
    else:
        await turn.send(saying("hello"))


async def close(turn: Turn) -> None:
    turn.close()


async def reset(turn: Turn) -> None:
    turn.reset()


async def hang(turn: Turn) -> None:
    await turn.until_lost()


async def break_off(turn: Turn) -> None:
    """In the middle of the answer."""
    if turn.json.get("stream"):
        await turn.send(SSE_HEAD + chunked(event({"content": "hello"})))
    else:
        await turn.send(saying("hello")[:-9])
    turn.close()


async def fall_silent(turn: Turn) -> None:
    await turn.send(SSE_HEAD + chunked(event({"content": "hello"})))
    await turn.until_lost()


async def answer_too_much(turn: Turn) -> None:
    await turn.send(saying("hello" * 100_000))


async def fail(turn: Turn) -> None:
    await turn.send(json_answer({"error": {"message": "boom"}}, "500 Oh"))


async def refuse(turn: Turn) -> None:
    await turn.send(json_answer({"error": {"message": "what is that?"}}, "400 Oh"))


FAILING: list[Script] = [answer_well, close, reset, hang, break_off, fall_silent, answer_too_much, fail, refuse]


@asynccontextmanager
async def scripted_pair(script: Script) -> AsyncIterator[RunningGateway]:
    """`a` acts as scripted, `b` is well."""
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(scripted(script, apart=True))
        b = await stack.enter_async_context(scripted(answer_well, apart=True))
        gateway = await stack.enter_async_context(running_gateway(ROUTES.format(a=a.url, b=b.url)))
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("b"))
            await some_of_answer(client)
            await leave(gateway, client)
        await left(gateway)
        yield gateway


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("alias", ["a", "chain", "both", "resumed"])
@pytest.mark.parametrize("script", FAILING, ids=[script.__name__ for script in FAILING])
async def test_nothing_of_a_request_stays_whose_backend_fails(script: Script, alias: str, stream: bool) -> None:
    async with scripted_pair(script) as gateway:
        for _ in range(2):  # the second at a backend of which the gateway may think ill
            async with raw_client(gateway.url) as client:
                await client.post(CHAT, chat(alias, stream=stream))
                await some_of_answer(client)
                await gateway.until(gateway.idle)
                await leave(gateway, client)
        assert await left(gateway) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_of_a_request_stays_that_waits_when_its_client_leaves(stream: bool) -> None:
    async with scripted_pair(hang) as gateway:
        scheduler = gateway.gateway.admission.scheduler
        async with raw_client(gateway.url) as first, raw_client(gateway.url) as second:
            await first.post(CHAT, chat("a"))
            await gateway.until(lambda: gateway.gateway.fleet["a"].inflight == 1)
            await second.post(CHAT, chat("a", stream=stream))
            await gateway.until(lambda: bool(scheduler.waiters))
            second.close()
            first.close()
            await gateway.until(lambda: not gateway.server.server_state.connections)
        assert await left(gateway) == []


@pytest.mark.parametrize("number", range(len(WHOLE) + len(STREAMS)))
async def test_nothing_of_a_hostile_answer_stays(number: int) -> None:
    sent, stream = [*WHOLE, *STREAMS][number], number >= len(WHOLE)

    async def play(turn: Turn) -> None:
        await turn.send(sent)
        turn.close()

    async with scripted_pair(play) as gateway:
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("chain", stream=stream))
            await some_of_answer(client)
            await gateway.until(gateway.idle)
            await leave(gateway, client)
        assert await left(gateway) == []


async def test_nothing_stays_of_a_client_that_stopped_reading() -> None:
    async def flood(turn: Turn) -> None:
        await turn.send(SSE_HEAD)
        while True:
            await turn.send(chunked(event({"content": "hello" * 10_000})))

    async with scripted_pair(flood) as gateway:
        for _ in range(2):
            async with raw_client(gateway.url, receive_buffer=4096) as client:
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket transport can
                await client.post(CHAT, chat("a", stream=True))
                (connection,) = gateway.server.server_state.connections
                assert isinstance(connection, Connection)
                flow = connection.flow
                del connection
                await gateway.until(partial(getattr, flow, "write_paused"))
                client.reset()
                await gateway.until(lambda: not gateway.server.server_state.connections)
            stayed = await left(gateway)
        assert stayed == []


async def test_nothing_stays_of_a_wait_that_is_refused() -> None:
    async with scripted_pair(answer_well) as gateway:
        admission, state = gateway.gateway.admission, gateway.gateway.fleet["a"]

        async def wait() -> None:
            held = admission.scheduler.try_acquire(state, 1, time.monotonic())
            assert held is not None
            waiter = Waiter("second", time.monotonic() + 60, lambda: None, lambda now: False, choices=(state,))
            waiting = asyncio.create_task(admission.wait(waiter))
            await turns()
            admission.scheduler.refuse(waiter, GatewayError("rate_limit_exceeded", "no"))
            await asyncio.wait([waiting])
            assert isinstance(waiting.exception(), GatewayError)
            admission.scheduler.release(held, time.monotonic())

        await asyncio.create_task(wait())
        assert await left(gateway) == []
