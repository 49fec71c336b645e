"""What requests and answers cost the gateway's memory: their size once, within `server.memory`."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.admission.memory import Memory, Share
from gateway.domain.health_state import State
from tests.gateway_process import MIB, GatewayProcess, gateway_process
from tests.raw_client import RawClient, chat, post_bytes, raw_client
from tests.scripted import Script, ScriptedBackend, Turn, json_answer, scripted
from tests.support import RunningGateway, running_gateway
from tests.waiting import pace, standing, until_said

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SMALL = 32 * 1024  # bytes of kernel buffer that each side asks for
CHAT = "/v1/chat/completions"
KEY = "a-key-of-a-client"
CLIENTS = f'clients: {{ann: {{key: "sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"}}}}\n'
CHUNKED = "transfer-encoding: chunked"
ANSWER = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "served/model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1},
}  # fmt: skip


def whole(size: int = 0) -> bytes:
    """A backend's answer of about so many bytes."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "x" * (size or 5)}, "finish_reason": "stop"}
    return json_answer({**ANSWER, "choices": [choice]})


async def answers(turn: Turn) -> None:
    await turn.send(whole())


def answers_much(size: int) -> Script:
    async def script(turn: Turn) -> None:
        await turn.send(whole(size))

    return script


def head(*lines: str) -> bytes:
    return "\r\n".join(
        [f"POST {CHAT} HTTP/1.1", "host: gateway", "content-type: application/json", *lines, "", ""]
    ).encode()


def body_of(size: int) -> bytes:
    return json.dumps(chat(said="x" * size)).encode()


@asynccontextmanager
async def process(folder: Path, server: str, *scripts: Script, before: str = "") -> AsyncIterator[GatewayProcess]:
    async with scripted(*scripts or (answers,)) as backend:
        routes = (
            f"server: {{{server}}}\n{before}"
            f"backends: {{a: {{url: '{backend.url}', health: {{every: none, canary: none}}}}}}\n"
        )
        async with gateway_process(folder, routes) as gateway:
            yield gateway


@asynccontextmanager
async def fronting(
    *scripts: Script, server: str = "memory: 4MiB", before: str = "", more: str = ""
) -> AsyncIterator[tuple[RunningGateway, ScriptedBackend]]:
    async with scripted(*scripts or (answers,)) as backend:
        routes = (
            f"server: {{{server}}}\n{before}backends: {{a: {{url: '{backend.url}', health: {{every: none}}, {more}}}}}"
        )
        async with running_gateway(routes) as gateway:
            for accepting in gateway.server.servers:
                for sock in accepting.sockets:  # what is accepted inherits it
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
            yield gateway, backend


async def held(gateway: RunningGateway, size: int) -> None:
    await gateway.until(lambda: gateway.gateway.memory.used >= size)


async def nothing_held(gateway: RunningGateway) -> None:
    await gateway.until(lambda: gateway.gateway.memory.used == 0)


# -- a body costs its size once ---------------------------------------------------------------------------------------


@linux
async def test_a_body_in_tiny_chunks_costs_its_size_once(tmp_path: Path) -> None:
    async with process(tmp_path, "max_body: 64MiB") as gateway:
        before = gateway.resident()
        async with raw_client(gateway.url) as client:
            await client.send(head(CHUNKED))
            begin = b'{"model":"a","messages":[{"role":"user","content":"'
            await client.send(b"%x\r\n%s\r\n" % (len(begin), begin))
            piece = b"2\r\nxx\r\n" * 32768
            for _ in range(20 * MIB // 65536):
                await client.send(piece)
            await until_said(lambda: _holds(gateway, 19 * MIB), 30)
            assert gateway.resident() - before < 45 * MIB
            end = b'"}]}'
            await client.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end))
            async with asyncio.timeout(30):
                assert b" 200 " in await client.reader.readuntil(b"\r\n")
        assert await gateway.metric("gateway_memory_bytes") == 0


async def _holds(gateway: GatewayProcess, size: int) -> bool:
    return await gateway.metric("gateway_memory_bytes") >= size


@linux
async def test_an_answer_in_tiny_chunks_costs_its_size_once(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def dribbles(turn: Turn) -> None:
        await turn.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(10 * MIB // 65536):
            await turn.send(b"2\r\nxx\r\n" * 32768)
        await release.wait()

    async with process(tmp_path, "memory: 1GiB", dribbles) as gateway, raw_client(gateway.url) as client:
        before = gateway.resident()
        await client.post(CHAT, chat())
        await until_said(lambda: _holds(gateway, 10 * MIB), 30)
        assert gateway.resident() - before < 35 * MIB
        release.set()


@linux
async def test_an_unread_answer_is_cut_and_costs_nothing_then(tmp_path: Path) -> None:
    before_routes = "defaults: {timeouts: {idle: 1s}}\n"
    async with process(tmp_path, "memory: 1GiB", answers_much(12 * MIB), before=before_routes) as gateway:
        before = gateway.resident()
        async with AsyncExitStack() as stack:
            for _ in range(8):
                client = await stack.enter_async_context(raw_client(gateway.url, receive_buffer=SMALL))
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as one that only writes
                await client.post(CHAT, chat())
            stalled = 'gateway_requests_total{alias="a",backend="a",code="client_stalled",endpoint="chat"}'

            async def all_cut() -> bool:
                return await gateway.metric(stalled) == 8

            await until_said(all_cut, 30)
            assert await gateway.metric("gateway_memory_bytes") == 0
            assert gateway.resident() - before < 60 * MIB


@linux
async def test_bodies_of_nobody_cost_nothing(tmp_path: Path) -> None:
    async with process(tmp_path, "max_body: 64MiB", before=CLIENTS) as gateway:
        before = gateway.resident()
        async with AsyncExitStack() as stack:
            for _ in range(10):
                client = await stack.enter_async_context(raw_client(gateway.url))
                await client.send(head(f"content-length: {20 * MIB}", "authorization: Bearer wrong"))
                status, body = await client.answer()
                assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
                for _ in range(20):  # it goes on all the same
                    client.writer.write(b"x" * MIB)
            assert await standing(gateway.resident) - before < 20 * MIB


# -- the budget -------------------------------------------------------------------------------------------------------


async def begin_body(client: RawClient, size: int) -> bytes:
    """Send all of a body but its last byte, which is returned."""
    data = body_of(size)
    await client.send(head(f"content-length: {len(data)}") + data[:-1])
    return data[-1:]


async def test_beyond_the_budget_new_bodies_get_503_and_it_recovers() -> None:
    async with fronting() as (gateway, _), raw_client(gateway.url) as first, raw_client(gateway.url) as second:
        last = await begin_body(first, 3 * MIB)
        await held(gateway, 3 * MIB)
        await begin_body(second, MIB)
        status, body = await second.answer()
        error = json.loads(body)["error"]
        assert (status, error["code"], error["type"]) == (503, "memory_full", "server_error")
        assert b"retry-after: 2\r\n" in second.seen.lower()
        assert gateway.metric("gateway_shortages_total", kind="budget") == 1
        small = await gateway.client.post(CHAT, json=chat())
        assert small.status_code == 200, "the reserve is for such as this"
        await first.send(last)
        assert (await first.answer())[0] == 200
        await nothing_held(gateway)
        assert (await gateway.client.post(CHAT, content=body_of(3 * MIB))).status_code == 200
        told = (await gateway.client.get("/status")).json()
        assert told["memory"] == {"used": 0, "limit": 4 * MIB, "refused": 1}
        assert told["short"] == ["budget"]


@pytest.mark.parametrize("leaves", [RawClient.reset, RawClient.half_close])
async def test_a_request_that_left_before_its_body_came_holds_no_memory(
    leaves: Callable[[RawClient], None],
) -> None:
    async with fronting() as (gateway, _), raw_client(gateway.url) as client:
        await begin_body(client, 2 * MIB)
        await held(gateway, 2 * MIB)
        leaves(client)
        await nothing_held(gateway)


def test_a_share_that_was_thrown_away_holds_no_memory() -> None:
    memory = Memory(1000)
    share = Share(memory)
    share.add(600)
    assert memory.used == 600
    del share
    assert memory.used == 0


async def test_a_client_with_many_large_requests_keeps_no_other_client_out() -> None:
    clients = "clients: {greedy: {key: greedy-key}, other: {key: other-key}}\n"
    async with fronting(before=clients) as (gateway, _), AsyncExitStack() as stack:
        for _ in range(8):
            client = await stack.enter_async_context(raw_client(gateway.url))
            await client.send(head("authorization: Bearer greedy-key", f"content-length: {MIB}"))
            await client.send(b"{" + b" " * (MIB // 2))
        await gateway.until(lambda: gateway.gateway.memory.refused > 0)
        other = {"authorization": "Bearer other-key"}
        reply = await gateway.client.post(CHAT, content=body_of(MIB // 2), headers=other)
        assert reply.status_code == 200


async def test_an_answer_without_room_fails_alone_and_is_not_held_against_its_backend() -> None:
    async with fronting(answers_much(5 * MIB), answers) as (gateway, _):
        refused = await gateway.client.post(CHAT, json=chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "memory_full")
        assert "retry-after" in refused.headers
        health = gateway.gateway.fleet["a"].health
        assert (health.fails, health.state) == (0, State.UNKNOWN)
        await nothing_held(gateway)
        assert (await gateway.client.post(CHAT, json=chat())).status_code == 200


async def test_an_answer_without_room_is_not_asked_for_at_another_backend() -> None:
    async with scripted(answers_much(5 * MIB)) as one, scripted(answers) as other:
        routes = (
            "server: {memory: 4MiB}\nbackends:\n"
            f"  a: {{url: '{one.url}', health: {{every: none}}}}\n"
            f"  b: {{url: '{other.url}', health: {{every: none}}}}\n"
            "aliases: {both: [a, b]}\n"
        )
        async with running_gateway(routes) as gateway:
            assert (await gateway.client.post(CHAT, json=chat("both"))).status_code == 503
            assert not other.turns


async def test_gzip_counts_as_what_it_inflates_to() -> None:
    bomb = gzip.compress(b" " * (16 * MIB) + b"{}", mtime=0)
    assert len(bomb) < 20_000
    async with fronting() as (gateway, _):
        refused = await gateway.client.post(CHAT, content=bomb, headers={"content-encoding": "gzip"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "memory_full")
        assert gateway.gateway.memory.used == 0
        fits = gzip.compress(body_of(3 * MIB))
        answer = await gateway.client.post(CHAT, content=fits, headers={"content-encoding": "gzip"})
        assert answer.status_code == 200


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens", "/tokenize"]
)
async def test_every_endpoint_that_reads_bodies_is_bound(path: str) -> None:
    async with fronting() as (gateway, _):
        refused = await gateway.client.post(path, content=b" " * (5 * MIB))
        assert refused.status_code == 503
        assert "memory_full" in refused.text or "holds as many bytes" in refused.text
        assert gateway.gateway.memory.used == 0


@pytest.mark.parametrize("path", ["/admin/explain", "/v1/messages/count_tokens", "/v1/messages", "/detokenize"])
async def test_every_body_ends_at_max_body(path: str) -> None:
    async with fronting(server="max_body: 64KiB") as (gateway, _):
        refused = await gateway.client.post(path, content=b" " * 100_000)
        assert refused.status_code == 413, refused.text


async def test_without_a_bound_everything_has_room() -> None:
    async with fronting(server="memory: none") as (gateway, _):
        assert (await gateway.client.post(CHAT, content=body_of(5 * MIB))).status_code == 200
        assert (await gateway.client.get("/status")).json()["memory"]["limit"] is None
        assert "\ngateway_memory_limit_bytes " not in (await gateway.client.get("/metrics")).text


# -- whole answers and their readers ----------------------------------------------------------------------------------


async def test_a_slow_but_steady_reader_gets_all_of_a_large_answer() -> None:
    async with fronting(answers_much(3 * MIB), server="memory: 16MiB", more="timeouts: {idle: 400ms}") as (gateway, _):
        async with raw_client(gateway.url, receive_buffer=SMALL) as client:
            await client.post(CHAT, chat())
            head_ = (await client.until(b"\r\n\r\n")).decode().lower()
            length = int(head_.partition("content-length: ")[2].partition("\r\n")[0])
            data = b""
            while len(data) < length:
                async with asyncio.timeout(5):
                    piece = await client.reader.read(65536)
                assert piece, "cut"
                data += piece
                await pace(0.02)
        assert len(json.loads(data)["choices"][0]["message"]["content"]) == 3 * MIB
        await nothing_held(gateway)


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_an_answer_that_nobody_reads_is_cut_after_idle(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.direct.FLUSH", 0.2)
    async with fronting(answers_much(12 * MIB), server="memory: 64MiB", more="timeouts: {idle: 300ms}") as (gateway, _):
        async with raw_client(gateway.url, receive_buffer=SMALL) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as one that only writes
            await client.post(path, {**chat(), "max_tokens": 100})
            await gateway.until(lambda: bool(gateway.gateway.memory.used))
            await nothing_held(gateway)
            await gateway.until(lambda: not gateway.server.server_state.connections)
        assert gateway.gateway.fleet["a"].health.fails == 0
        outcome = {"alias": "a", "backend": "a", "endpoint": path.rpartition("/")[2].replace("completions", "chat")}
        assert gateway.metric("gateway_requests_total", **outcome, code="client_stalled") == 1


async def test_a_page_that_nobody_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.client_connection.PATIENCE", 0.2)
    async with fronting() as (gateway, _), raw_client(gateway.url, receive_buffer=SMALL) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as one that only writes
        for _ in range(400):
            client.writer.write(b"GET /metrics HTTP/1.1\r\nhost: gateway\r\n\r\n")
        (connection,) = await until_said(lambda: _connections(gateway))
        await gateway.until(lambda: connection.gone)


async def _connections(gateway: RunningGateway) -> list[Any]:
    return list(gateway.server.server_state.connections)


async def test_a_refusal_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.domain.request_timer.UNREAD", 0.3)
    monkeypatch.setattr("gateway.http.client_connection.PATIENCE", 0.3)
    async with fronting() as (gateway, _), raw_client(gateway.url, receive_buffer=SMALL) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as one that only writes
        for _ in range(3000):
            client.writer.write(post_bytes(CHAT, {"model": "x" * 900, "messages": []}))
        (connection,) = await until_said(lambda: _connections(gateway))
        await gateway.until(lambda: connection.gone)
        await gateway.until(gateway.idle)
