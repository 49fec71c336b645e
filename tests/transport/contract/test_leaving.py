"""Cancel, abort and close: nothing is left open, and a reader that does not come stops the backend."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gateway.domain.upstream import ConnectFailure, ResetFailure, SilenceFailure, UpstreamFailure
from gateway.transport.aio import AioClient
from tests.transport.contract.rig import MIB, Rig, settle
from tests.transport.wire_server import CHUNKED_HEAD, Peer, always, answer, chunk, once
from tests.waiting import standing, turns

pytestmark = pytest.mark.filterwarnings("error")


# Cancel, abort, close


async def test_a_cancel_while_waiting_for_the_head_closes_the_socket(rig: Rig) -> None:
    arrived = asyncio.Event()

    async def handler(peer: Peer) -> None:
        await peer.request()
        arrived.set()
        await peer.until_lost()

    await rig.start(handler)
    sending = asyncio.create_task(rig.post())
    await arrived.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await rig.server.connections(0, within=0.1)


async def test_a_cancelled_read_can_be_followed_by_another_or_by_release(rig: Rig) -> None:
    go = asyncio.Event()

    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD)
        await go.wait()
        await peer.send(chunk(b"late"))
        await peer.until_lost()

    await rig.start(handler)
    response = await rig.get()
    reading = asyncio.create_task(response.read_some())
    await turns()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    go.set()
    assert await response.read_some() == b"late"
    response.release()
    await rig.server.connections(0, within=0.1)


async def test_abort_wakes_a_waiting_reader_with_its_reason_and_closes_the_socket(rig: Rig) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD + chunk(b"part"))
        await peer.until_lost()

    await rig.start(handler)
    response = await rig.get()
    assert await response.read_some() == b"part"
    reading = asyncio.create_task(response.read_some())
    await turns()
    response.abort(SilenceFailure("nothing for 30 s"))
    for waiting in (reading, response.read_some(), response.read_all(10)):
        with pytest.raises(SilenceFailure, match="nothing for 30 s"):
            await waiting
    response.abort(ResetFailure("later"))
    response.release()
    with pytest.raises(SilenceFailure):
        await response.read_some()
    await rig.server.connections(0, within=0.1)


async def test_abort_without_a_reason_is_a_reset(rig: Rig) -> None:
    await rig.start(always(answer(b"unread")))
    response = await rig.get()
    response.abort()
    with pytest.raises(ResetFailure):
        await response.read_some()


@pytest.mark.parametrize("how", ["abort", "cancel"])
async def test_leaving_a_request_that_is_still_being_sent_does_not_flush_it(rig: Rig, how: str) -> None:
    left, over = asyncio.Event(), asyncio.Event()
    received = 0

    async def handler(peer: Peer) -> None:
        nonlocal received
        await peer.reader.readuntil(b"\r\n\r\n")
        if how == "abort":
            await peer.send(CHUNKED_HEAD + chunk(b"early"))
        await left.wait()
        with contextlib.suppress(ConnectionError):
            while data := await peer.reader.read(MIB):
                received += len(data)
        over.set()

    await rig.start(handler)
    sending = asyncio.create_task(rig.post(bytes(64 * MIB)))
    if how == "abort":
        (await sending).abort()
    else:
        await rig.server.peer(0)
        await settle()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    async with asyncio.timeout(4):
        await rig.client.close()  # would wait for the flush
    left.set()
    async with asyncio.timeout(10):
        await over.wait()
    assert received < 32 * MIB  # what was in the kernel's buffers
    await rig.server.connections(0, within=0.1)


async def test_close_ends_idle_and_busy_connections_and_their_readers(rig: Rig) -> None:
    async def handler(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            await peer.send(answer(b"ok") if "/idle" in head else CHUNKED_HEAD)

    await rig.start(handler)
    response, waiting = await rig.get("/busy"), asyncio.create_task(rig.post())
    assert await rig.whole("/idle") == b"ok"
    reading = asyncio.create_task(response.read_some())
    await turns()
    await rig.client.close()
    with pytest.raises(UpstreamFailure):
        await reading
    with contextlib.suppress(UpstreamFailure):  # it may have been answered before, or end with the rest
        (await waiting).release()
    await rig.server.connections(0)
    with pytest.raises(ConnectFailure):
        await rig.get()


# Flow control


async def test_a_reader_that_does_not_come_stops_the_backend(rig: Rig) -> None:
    total, piece = 50 * MIB, bytes(MIB)
    handed = 0

    async def handler(peer: Peer) -> None:
        nonlocal handed
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while handed < total:
            await peer.send(piece)
            handed += len(piece)
        await peer.until_lost()

    await rig.start(handler)
    response = await rig.get()
    assert await standing(lambda: handed) < total - 20 * MIB  # the kernel's socket buffers take a few MiB
    got = 0
    while data := await response.read_some():
        got += len(data)
    assert got == total
    response.release()


async def test_what_is_read_ahead_is_bounded(rig: Rig) -> None:
    await rig.start(once(answer(bytes(8 * MIB))))
    if isinstance(rig.client, AioClient):
        pytest.skip("aiohttp's buffer is private")
    response = await rig.client.send("GET", "/", [], b"")
    await settle()
    assert 0 < response.size <= 512 * 1024
    response.release()
