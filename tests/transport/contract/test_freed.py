"""Responses and connections that have ended are freed at once, whatever was raised on the way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from aiohttp.client_proto import ResponseHandler

from gateway.domain.upstream import SilenceFailure, UpstreamFailure
from gateway.transport.aio import AioResponse
from gateway.transport.h1 import H1Client
from gateway.transport.h1_connection import H1Connection
from gateway.transport.h1_response import H1Response
from tests.garbage import garbage, no_collection
from tests.transport.contract.rig import Rig, settle
from tests.transport.wire_server import CHUNKED_HEAD, Peer, always, answer, chunk, once
from tests.waiting import turns

BREAKING = {
    "before the head": b"",
    "in the head": b"HTTP/1.1 200 OK\r\nx: y",
    "in the body": CHUNKED_HEAD + chunk(b"part"),
    "no HTTP": b"\x16\x03\x01 no HTTP at all\r\n\r\n",
    "status 101": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "no gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd",
    "too large": b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n" + b"x" * 300_000,
}


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    with no_collection():
        yield


async def ended() -> list[str]:
    await settle()
    return garbage()


# Each request in a task, as in the gateway: what a task's context holds is freed with it.


async def read(rig: Rig, *, limit: int = 100_000) -> None:
    response = await rig.get()
    try:
        await response.read_all(limit)
    finally:
        response.release()


async def test_an_answer_that_was_read_is_freed(rig: Rig) -> None:
    await rig.start(always(answer(b"x" * 1000)))
    for _ in range(2):  # what the first one builds stays
        garbage()
        await asyncio.create_task(read(rig))
    assert await ended() == []


async def test_nothing_is_kept_of_connections_that_are_closed(rig: Rig) -> None:
    await rig.start(always(answer(b"x" * 1000)))

    async def once_each() -> None:
        for _ in range(3):
            response = await rig.get(fresh=True)
            await response.read_all(5000)
            response.release()

    def alive() -> list[object]:
        return [
            one for one in gc.get_objects() if type(one) in (H1Connection, H1Response, AioResponse, ResponseHandler)
        ]

    await asyncio.create_task(once_each())
    while isinstance(rig.client, H1Client) and (idle := rig.client._take_idle()) is not None:
        idle.drop()  # it is kept for a next request
        del idle
    await rig.server.connections(0)
    await ended()
    assert alive() == []


@pytest.mark.parametrize("sent", BREAKING.values(), ids=BREAKING)
async def test_an_answer_that_fails_is_freed(rig: Rig, sent: bytes) -> None:
    await rig.start(once(sent))
    for _ in range(2):
        garbage()
        with pytest.raises(UpstreamFailure):
            await asyncio.create_task(read(rig))
    assert await ended() == []


async def test_an_answer_is_freed_that_was_aborted_while_it_was_waited_for(rig: Rig) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD + chunk(b"part"))
        await peer.until_lost()

    async def aborted() -> None:
        response = await rig.get()
        assert await response.read_some() == b"part"
        reading = asyncio.create_task(response.read_some())
        await turns()
        response.abort(SilenceFailure("nothing for 30 s"))
        await asyncio.wait([reading])
        assert isinstance(reading.exception(), SilenceFailure)
        with pytest.raises(SilenceFailure):
            await response.read_some()

    await rig.start(handler)
    for _ in range(2):
        garbage()
        await asyncio.create_task(aborted())
    assert await ended() == []


async def test_a_connection_is_freed_that_was_given_up_before_it_was_open(rig: Rig) -> None:
    await rig.start(once(answer(b"x")))
    for _ in range(2):
        garbage()
        asking = asyncio.create_task(rig.get())
        await turns(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        del asking
    assert await ended() == []
