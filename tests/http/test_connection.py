"""Our own listener's connections, byte by byte: what a client may send and how an answer begins and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from simulator import SimVllm
from tests.support import RunningGateway, running_gateway

QUIET = 0.5  # seconds without a byte after which a connection counts as left open


def body(**more: object) -> bytes:
    fields = {"model": "chat", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}], **more}
    return msgspec.json.encode(fields)


def post(content: bytes, version: str = "1.1", headers: str = "", path: str = "/v1/chat/completions") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nhost: x\r\n{headers}content-length: {len(content)}\r\n\r\n"
    return head.encode() + content


@asynccontextmanager
async def setup() -> AsyncIterator[tuple[RunningGateway, SimVllm]]:
    sim = SimVllm(name="a", served=["m"], context=32768)
    async with sim.serve(port=0) as url:
        routes = f"server: {{max_body: 4KiB}}\nbackends: {{chat: {{url: '{url}'}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("chat")
            yield gateway, sim


async def talk(gateway: RunningGateway, *sent: bytes) -> tuple[bytes, bool]:
    """(all that came back, did the gateway close the connection)."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for data in sent:
        writer.write(data)
    received = b""
    try:
        while data := await asyncio.wait_for(reader.read(65536), QUIET):
            received += data
        return received, True
    except TimeoutError:
        return received, False
    finally:
        writer.close()


async def test_an_answer_keeps_the_connection_for_the_next_request() -> None:
    async with setup() as (gateway, _):
        received, closed = await talk(gateway, post(body()))
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\ndate: " in received
        assert not closed


async def test_connection_close_is_honoured() -> None:
    async with setup() as (gateway, _):
        received, closed = await talk(gateway, post(body(stream=True), headers="connection: close\r\n"))
        assert b"connection: close\r\n" in received
        assert received.endswith(b"0\r\n\r\n")
        assert closed


async def test_http_1_0_gets_no_chunks_and_the_end_of_the_connection() -> None:
    async with setup() as (gateway, _):
        received, closed = await talk(gateway, post(body(stream=True), version="1.0"))
        assert b"transfer-encoding" not in received
        assert received.endswith(b"data: [DONE]\n\n")
        assert closed


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with setup() as (gateway, sim):
        health = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
        streams = [post(body(stream=True, user=str(i)), headers=f"x-request-id: r{i}\r\n") for i in range(3)]
        received, _ = await talk(gateway, streams[0] + streams[1] + health + streams[2])
        assert received.count(b"HTTP/1.1 200 OK") == 4
        found = [received.index(f"x-request-id: r{i}\r\n".encode()) for i in range(3)]
        assert found == sorted(found)
        assert received.index(b'{"status":"ok"}') > found[1]
        assert [r.json["user"] for r in sim.requests] == ["0", "1", "2"]


async def test_a_pipelined_request_whose_body_comes_late_is_answered() -> None:
    async with setup() as (gateway, _):
        second = post(body())
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(post(body(stream=True)) + second[:-20])
        first = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200 OK")
        writer.write(second[-20:])
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()


async def test_expect_100_continue_is_answered_before_the_body() -> None:
    async with setup() as (gateway, _):
        received, _ = await talk(gateway, post(body(), headers="expect: 100-continue\r\n")[: -len(body())])
        assert received == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("size", [5000, 3_000_000])
async def test_a_body_that_is_too_large_is_refused_so_that_the_client_can_read_it(size: int) -> None:
    async with setup() as (gateway, sim):
        received, _ = await talk(gateway, post(b"x" * size))
        assert received.startswith(b"HTTP/1.1 413 ")
        assert b'"code":"request_too_large"' in received
        assert b"connection: close\r\n" in received
        assert not sim.requests


async def test_a_chunked_body_is_limited_too() -> None:
    async with setup() as (gateway, _):
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        received, _ = await talk(gateway, head, *[b"400\r\n" + b"x" * 1024 + b"\r\n"] * 5)
        assert received.startswith(b"HTTP/1.1 413 ")


async def test_an_escaped_path_goes_the_general_way_to_the_same_answer() -> None:
    async with setup() as (gateway, _):
        received, _ = await talk(gateway, post(body(stream=True), path="/v1/chat%2Fcompletions?beta=true"))
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"data: [DONE]\n\n" in received


async def test_other_methods_on_an_inference_path_are_told_which_one() -> None:
    async with setup() as (gateway, _):
        reply = await gateway.client.get("/v1/chat/completions")
        assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        assert (await gateway.client.get("/v1/responses", headers=upgrade)).status_code == 426
        assert reply.json()["error"]["code"] == "method_not_allowed"


async def test_a_client_that_leaves_during_its_upload_is_counted() -> None:
    async with setup() as (gateway, sim):
        host, port = gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(post(body())[:-5])
        await writer.drain()
        writer.close()
        labels = {"alias": "", "backend": "", "endpoint": "chat", "code": "client_gone"}
        await gateway.until(lambda: gateway.metric("gateway_requests_total", **labels) == 1)
        assert not sim.requests


async def test_garbage_is_a_400() -> None:
    async with setup() as (gateway, _):
        received, closed = await talk(gateway, b"NONSENSE\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 400 ")
        assert closed
