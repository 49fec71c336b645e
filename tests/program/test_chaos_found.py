"""What a crowd of misbehaving clients in front of failing backends brought to light, each case for itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.raw_client import RawClient, chat, post_bytes, raw_client
from tests.scripted import END, SSE_HEAD, Script, Turn, chunked, scripted
from tests.support import RunningGateway, running_gateway
from tests.waiting import standing

CHAT = "/v1/chat/completions"
MIB = 1024 * 1024
DONE = b"data: [DONE]\n\n"


def chunk(said: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": said}, "finish_reason": finish}
    body = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "served/model", "choices": [choice]}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def whole(said: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
    body = json.dumps({"id": "x", "created": 1, "model": "served/model", "choices": [choice]}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def routes(url: str, timeouts: str = "") -> str:
    return f"backends: {{a: {{url: '{url}', timeouts: {{{timeouts}}}}}}}"


@pytest.mark.parametrize("path", [CHAT, "/v1/chat%2Fcompletions"], ids=["straight", "through ASGI"])
async def test_a_leaving_client_is_noticed_while_the_answer_before_is_still_ended_upstream(path: str) -> None:
    """The first answer is complete for the client before upstream has ended its body; its request is over later than
    the next one of the same connection began."""
    may_end, second_lost = asyncio.Event(), asyncio.Event()

    async def late_end(turn: Turn) -> None:
        await turn.stream(chunk("hi", "stop"), DONE, end=False)
        await may_end.wait()
        await turn.send(END)

    async def silent(turn: Turn) -> None:
        await turn.until_lost()
        second_lost.set()

    async with (
        scripted(late_end, silent) as backend,
        running_gateway(routes(backend.url), decides_ahead="never") as gateway,
    ):
        async with raw_client(gateway.url) as client:
            await client.post(path, chat(stream=True))
            await client.until(b"0\r\n\r\n")
            await client.post(path, chat(stream=True))
            await gateway.until(lambda: len(backend.turns) == 2 and len(gateway.gateway.active) == 2)
            may_end.set()
            await gateway.until(lambda: len(gateway.gateway.active) == 1)
            client.close()
            async with asyncio.timeout(10):
                await second_lost.wait()
        await gateway.until(gateway.idle)


def stalled(gateway: RunningGateway) -> float:
    labels = {"alias": "a", "backend": "a", "endpoint": "chat", "code": "client_stalled"}
    return gateway.metric("gateway_requests_total", **labels)


@pytest.fixture(autouse=True)
def quick_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.direct.FLUSH", 0.2)


@asynccontextmanager
async def unread(script: Script, timeouts: str) -> AsyncIterator[tuple[RunningGateway, RawClient]]:
    """A client that reads nothing, on a gateway in front of `script`."""
    async with (
        scripted(script) as backend,
        running_gateway(routes(backend.url, timeouts)) as gateway,
        raw_client(gateway.url, receive_buffer=4096) as client,
    ):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket transport can
        yield gateway, client


async def test_a_reader_that_stops_before_the_last_bytes_does_not_keep_its_slot() -> None:
    """All of the answer is written at once; what is left to send is the end, and that waits for the reader."""

    async def flood(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(chunk("x" * 12 * MIB, "stop"), DONE) + END)

    async with unread(flood, "idle: 300ms") as (gateway, client):
        await client.post(CHAT, chat(stream=True))
        await gateway.until(lambda: stalled(gateway) == 1)
        await gateway.until(gateway.idle)
        await gateway.until(lambda: not gateway.server.server_state.connections)


async def test_a_reader_that_stops_before_a_pipelined_answer_does_not_keep_its_slot() -> None:
    async def large(turn: Turn) -> None:
        await turn.send(whole("x" * 12 * MIB))

    async with unread(large, "first_byte: 1s") as (gateway, client):
        await client.send(post_bytes(CHAT, chat()) * 2)
        await gateway.until(lambda: stalled(gateway) == 1)
        await gateway.until(gateway.idle)


async def test_a_pipelined_request_that_waits_for_100_continue_is_told_to_go_on() -> None:
    async def quick(turn: Turn) -> None:
        await turn.send(whole("hi"))

    async with (
        scripted(quick) as backend,
        running_gateway(routes(backend.url)) as gateway,
        raw_client(gateway.url) as client,
    ):
        head, _, body = post_bytes(CHAT, chat(), "expect: 100-continue").partition(b"\r\n\r\n")
        await client.send(post_bytes(CHAT, chat()) + head + b"\r\n\r\n")
        assert (await client.answer())[0] == 200
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.answer())[0] == 200


async def test_a_cut_stream_is_told_to_be_broken_though_the_next_request_is_still_arriving() -> None:
    """A connection that is closed with bytes unread is reset, and a reset may overtake what was sent before it."""

    async def dies(turn: Turn) -> None:
        await turn.stream(chunk("hi"), end=False)
        await standing(client.writer.transport.get_write_buffer_size)  # the gateway reads no more, the kernel is full
        turn.reset()

    async with (
        scripted(dies) as backend,
        running_gateway(routes(backend.url)) as gateway,
        raw_client(gateway.url) as client,
    ):
        client.writer.write(post_bytes(CHAT, chat(stream=True)) + post_bytes(CHAT, chat(said="x" * 8 * MIB)))
        received = await client.rest()
        assert received.endswith(b'"code":"stream_interrupted"}}\n\n\r\n')
        assert len(backend.turns) == 1


UPGRADE = ["connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIAAAABAAMAAABk"]


@pytest.mark.parametrize("chunked_body", [False, True], ids=["with its length", "chunked"])
async def test_an_offer_to_upgrade_is_declined_and_the_request_answered(chunked_body: bool) -> None:
    """The JDK's HttpClient offers h2c with every first request; the parser stops reading at such a head."""

    async def quick(turn: Turn) -> None:
        await turn.send(whole("hi"))

    async with (
        scripted(quick) as backend,
        running_gateway(routes(backend.url)) as gateway,
        raw_client(gateway.url) as client,
    ):
        request = post_bytes(CHAT, chat(said="x" * 100_000), *UPGRADE)
        if chunked_body:
            head, _, body = request.partition(b"\r\n\r\n")
            head = head.replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked")
            request = head + b"\r\n\r\n" + chunked(body[:70_000], body[70_000:]) + END
        for data in (request, request + request, post_bytes(CHAT, chat())):
            await client.send(data)
        for _ in range(4):
            assert (await client.answer())[0] == 200
        assert [len(turn.json["messages"][0]["content"]) for turn in backend.turns] == [100_000] * 3 + [5]
        await client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + "\r\n".join([*UPGRADE, "", ""]).encode()
        )
        assert (await client.answer())[0] == 400
        await client.get("/health")
        assert (await client.answer())[0] == 200
