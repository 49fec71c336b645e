"""Which connections are used again, and what is told of one that failed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from gateway.domain.upstream import ConnectFailure, ResetFailure, StaleConnection
from gateway.transport.aio import AioClient
from gateway.transport.h1 import H1Client
from tests.transport.contract.rig import Maker, Rig, settle, was_reused
from tests.transport.wire_server import CHUNKED_HEAD, Peer, always, answer, chunk, once

pytestmark = pytest.mark.filterwarnings("error")


async def test_a_connection_read_to_its_end_serves_the_next_request(rig: Rig) -> None:
    await rig.start(always(answer(b"ok")))
    reused = []
    for _ in range(3):
        response = await rig.get()
        await response.read_all(10)
        reused.append(was_reused(response))
        response.release()
        response.release()
        response.abort()
    assert reused == [False, True, True]
    assert len(rig.server.peers) == 1


async def test_fresh_asks_for_a_new_connection(rig: Rig) -> None:
    await rig.start(always(answer(b"ok")))
    assert await rig.whole() == b"ok"
    response = await rig.get(fresh=True)
    assert not was_reused(response)
    await response.read_all(10)
    response.release()
    assert len(rig.server.peers) == 2


async def test_an_unread_body_closes_the_connection_on_release(rig: Rig) -> None:
    await rig.start(always(CHUNKED_HEAD + chunk(b"more to come")))
    response = await rig.get()
    response.release()
    await rig.server.connections(0)


@pytest.mark.parametrize(
    "wire",
    [
        answer(b"ok", "Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        answer(b"ok") + b"HTTP/1.1 200 OK\r\n",
        answer(b"ok") + answer(b"unasked"),
    ],
    ids=["connection: close", "HTTP/1.0", "half an answer left over", "an answer left over"],
)
async def test_a_connection_that_is_over_or_out_of_step_is_not_used_again(rig: Rig, wire: bytes) -> None:
    await rig.start(always(wire))
    if rig.make is AioClient and wire.endswith(b"200 OK\r\n"):
        pytest.skip("aiohttp does not look at an unfinished head between two requests")
    for number in range(3):
        response = await rig.get()
        assert await response.read_all(10) == b"ok"
        assert not was_reused(response)
        response.release()
        assert len(rig.server.peers) == number + 1
    await rig.server.connections(0)


async def test_bytes_that_nobody_asked_for_end_an_idle_connection(rig: Rig) -> None:
    await rig.start(always(answer(b"ok")))
    await rig.whole()
    await rig.server.peers[0].send(answer(b"", status="408 Request Timeout"))
    if isinstance(rig.client, H1Client):  # aiohttp notices when it wants to use the connection
        await rig.server.connections(0)
    await settle()
    assert await rig.whole() == b"ok"
    assert len(rig.server.peers) == 2


async def test_a_connection_closed_while_idle_is_replaced_without_a_failure(rig: Rig) -> None:
    await rig.start(once(answer(b"ok")))
    for _ in range(3):
        assert await rig.whole() == b"ok"
        await rig.server.connections(0)
        await settle()


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_reused_connection_that_ends_before_a_byte_is_stale(rig: Rig, method: str, reset: bool) -> None:
    requests = 0

    async def handler(peer: Peer) -> None:
        nonlocal requests
        await peer.request()
        requests += 1
        await peer.send(answer(b"ok"))
        await peer.request()
        requests += 1
        if reset:
            peer.reset()

    await rig.start(handler)
    assert await rig.whole() == b"ok"
    with pytest.raises(StaleConnection):
        await rig.client.send(method, "/", [], b"{}" if method == "POST" else b"")
    assert (requests, len(rig.server.peers)) == (2, 1)
    response = await rig.client.send(method, "/", [], b"", fresh=True)
    assert await response.read_all(10) == b"ok"
    response.release()


async def test_stale_is_told_apart_from_reset_under_concurrency(rig: Rig) -> None:
    """Half of the requests ride on pooled connections and half on new ones; the server ends all of them."""
    together = 10
    arrived = asyncio.Barrier(2 * together)

    async def handler(peer: Peer) -> None:
        if peer.number < together:
            await peer.request()
            await peer.send(answer(b"ok"))
        await peer.request()
        await arrived.wait()

    await rig.start(handler)
    first = await asyncio.gather(*(rig.get() for _ in range(together)))
    for response in first:
        await response.read_all(10)
        response.release()
    results = await asyncio.gather(*(rig.post() for _ in range(2 * together)), return_exceptions=True)
    kinds = [type(result) for result in results]
    assert kinds.count(StaleConnection) == kinds.count(ResetFailure) == together


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_new_connection_that_ends_before_the_head_is_a_reset(rig: Rig, method: str, reset: bool) -> None:
    await rig.start(once(reset=reset))
    with pytest.raises(ResetFailure):
        await rig.client.send(method, "/", [], b"")
    assert len(rig.server.peers) == 1


@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_a_reused_connection_that_ends_inside_the_head_is_a_reset(rig: Rig, part: bytes) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer(b"ok"))
        await peer.request()
        await peer.send(part)

    await rig.start(handler)
    await rig.whole()
    with pytest.raises(ResetFailure):
        await rig.get()


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize(
    "wire",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart", CHUNKED_HEAD + chunk(b"part"), CHUNKED_HEAD + b"9\r\npart"],
    ids=["length", "between chunks", "in a chunk"],
)
async def test_a_body_that_ends_early_is_a_reset_after_what_had_come(rig: Rig, wire: bytes, reset: bool) -> None:
    go = asyncio.Event()

    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(wire)
        await go.wait()
        if reset:
            peer.reset()

    await rig.start(handler)
    response = await rig.get()
    assert await response.read_some() == b"part"
    go.set()
    for _ in range(2):
        with pytest.raises(ResetFailure):
            await response.read_some()
    response.release()


async def test_idle_connections_are_closed_after_max_idle(rig: Rig) -> None:
    await rig.start(always(answer(b"ok")), max_idle=0.1)
    for response in await asyncio.gather(*(rig.get() for _ in range(3))):
        await response.read_all(10)
        response.release()
    await rig.server.connections(0, within=2.0)
    assert len(rig.server.peers) == 3
    assert await rig.whole() == b"ok"


async def test_many_requests_at_once_get_each_its_own_answer(rig: Rig) -> None:
    async def handler(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            path = head.split(" ")[1].encode()
            await peer.send(CHUNKED_HEAD, chunk(path), chunk(path) + chunk(b""))

    await rig.start(handler)
    for _ in range(2):
        paths = [f"/{number}" for number in range(100)]
        assert await asyncio.gather(*(rig.whole(path) for path in paths)) == [(path * 2).encode() for path in paths]
    assert len(rig.server.peers) <= 200


async def test_a_refused_connection_is_a_connect_failure(make: Maker) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening: nobody else takes the port meanwhile
        client = make(("http", "127.0.0.1", held.getsockname()[1]), connect_timeout=2.0)
        with pytest.raises(ConnectFailure):
            await client.send("POST", "/", [], b"{}")
        await client.close()


async def test_a_name_that_does_not_resolve_is_a_connect_failure(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", unknown)
    client = make(("http", "spark-9.invalid", 8000), connect_timeout=2.0)
    with pytest.raises(ConnectFailure):
        await client.send("POST", "/", [], b"{}")
    await client.close()


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port whose backlog is full, so that the kernel leaves a new connection unanswered."""
    fillers: list[socket.socket] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            filler = socket.socket()
            filler.settimeout(0.2)
            fillers.append(filler)
            try:
                filler.connect(listener.getsockname())
            except TimeoutError:
                break
        else:
            pytest.skip("this kernel accepts beyond a backlog of 0")
        yield listener.getsockname()[1]
        for filler in fillers:
            filler.close()


async def test_a_connect_that_takes_too_long_is_a_connect_failure(make: Maker, deaf_port: int) -> None:
    client = make(("http", "127.0.0.1", deaf_port), connect_timeout=0.1)
    async with asyncio.timeout(10):
        with pytest.raises(ConnectFailure):
            await client.send("POST", "/", [], b"{}")
    await client.close()


async def test_a_cancel_during_the_connect_leaves_nothing_behind(make: Maker, deaf_port: int) -> None:
    client = make(("http", "127.0.0.1", deaf_port), connect_timeout=30.0)
    sending = asyncio.create_task(client.send("POST", "/", [], b"{}"))
    await settle()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await client.close()
