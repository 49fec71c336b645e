"""What an upstream client makes of an answer: head, body, and what is no HTTP. See `gateway.domain.upstream`."""

from __future__ import annotations

import asyncio

import pytest

from gateway.domain.upstream import ProtocolFailure, TooLarge
from tests.transport.contract.rig import Rig, drain
from tests.transport.wire_server import CHUNKED_HEAD, Peer, always, answer, chunk, once

pytestmark = pytest.mark.filterwarnings("error")


# The head and the body


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (answer(b"hello", "X-One: 1"), b"hello"),
        (
            b"HTTP/1.1 200 OK\r\nX-One: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunk(b"hel")
            + chunk(b"lo")
            + chunk(b""),
            b"hello",
        ),
        (b"HTTP/1.1 100 Continue\r\nX-One: 0\r\n\r\n" + answer(b"hello", "x-ONE:1"), b"hello"),
    ],
    ids=["length", "chunked", "after a 100"],
)
async def test_an_answer_cut_at_any_byte_reads_the_same(rig: Rig, wire: bytes, body: bytes) -> None:
    cuts = iter(range(1, len(wire)))

    async def handler(peer: Peer) -> None:
        while True:
            await peer.request()
            cut = next(cuts)
            await peer.send(wire[:cut], wire[cut:])

    await rig.start(handler)
    for _ in range(1, len(wire)):
        response = await rig.get()
        assert (response.status, response.headers["x-one"]) == (200, "1")
        assert await response.read_all(100) == body
        response.release()
    assert len(rig.server.peers) == 1


async def test_names_of_headers_are_lower_case_and_of_repeated_ones_the_last_counts(rig: Rig) -> None:
    await rig.start(always(answer(b"", "Retry-After: 1", "X-Req: ok", "RETRY-AFTER:  2 ", status="429 Slow Down")))
    response = await rig.get()
    assert response.status == 429
    assert dict(response.headers) == {"content-length": "0", "retry-after": "2", "x-req": "ok"}
    assert await response.read_all(10) == b""
    response.release()


async def test_a_piece_is_readable_before_the_next_is_sent(rig: Rig) -> None:
    go = asyncio.Event()

    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD + chunk(b"first"))
        await go.wait()
        await peer.send(chunk(b"second") + chunk(b""))
        await peer.until_lost()

    await rig.start(handler)
    response = await rig.get()
    assert await response.read_some() == b"first"
    go.set()
    assert await response.read_some() == b"second"
    assert await response.read_some() == b""
    assert await response.read_some() == b""
    response.release()


async def test_reading_what_has_arrived_does_not_suspend(rig: Rig) -> None:
    await rig.start(always(answer(b"all of it")))
    response = await rig.get()
    step = response.read_some()
    with pytest.raises(StopIteration) as done:
        step.send(None)
    assert done.value.value == b"all of it"
    response.release()


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        CHUNKED_HEAD + chunk(b""),
    ],
    ids=["204", "304", "length 0", "no chunk"],
)
async def test_an_answer_without_a_body_ends_at_once_and_keeps_its_connection(rig: Rig, wire: bytes) -> None:
    await rig.start(always(wire))
    for _ in range(2):
        assert await rig.whole() == b""
    assert len(rig.server.peers) == 1


async def test_the_answer_to_head_has_no_body_whatever_its_headers_say(rig: Rig) -> None:
    await rig.start(always(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"))
    response = await rig.client.send("HEAD", "/", [], b"")
    assert response.headers["content-length"] == "5"
    assert await response.read_some() == b""
    response.release()


async def test_a_body_without_length_ends_with_the_connection(rig: Rig) -> None:
    await rig.start(once(b"HTTP/1.1 200 OK\r\n\r\nto the", b" end"))
    assert await rig.whole() == b"to the end"


async def test_trailers_are_no_headers_of_this_answer_or_the_next(rig: Rig) -> None:
    await rig.start(always(CHUNKED_HEAD + chunk(b"x") + b"0\r\nX-Trailer: 1\r\n\r\n"))
    for _ in range(2):
        response = await rig.get()
        assert await response.read_all(10) == b"x"
        assert "x-trailer" not in response.headers
        response.release()
    assert len(rig.server.peers) == 1


async def test_a_body_larger_than_the_limit_is_refused_and_its_connection_closed(rig: Rig) -> None:
    await rig.start(always(CHUNKED_HEAD + chunk(b"x" * 60), chunk(b"y" * 60)))
    response = await rig.get()
    with pytest.raises(TooLarge):
        await response.read_all(100)
    response.release()
    await rig.server.connections(0)


# What is not HTTP


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
    ids=["not http", "no status", "negative length", "two lengths", "101", "a head of 70 KB"],
)
async def test_what_is_not_an_http_answer_is_a_protocol_failure(rig: Rig, wire: bytes) -> None:
    await rig.start(always(wire))
    with pytest.raises(ProtocolFailure):
        await rig.whole()
    await rig.server.connections(0)


async def test_a_head_of_many_headers_is_bounded(rig: Rig) -> None:
    await rig.start(always(b"HTTP/1.1 200 OK\r\n", *[b"X-%d: %b\r\n" % (n, b"x" * 7000) for n in range(12)], b"\r\n"))
    with pytest.raises(ProtocolFailure):
        await rig.whole()


async def test_garbage_instead_of_a_chunk_is_a_failure_and_not_a_hang(rig: Rig) -> None:
    await rig.start(always(CHUNKED_HEAD + chunk(b"fine"), b"zz\r\ngarbage\r\n"))
    response = await rig.get()
    async with asyncio.timeout(10):
        got, failure = await drain(response)
    assert b"fine".startswith(got)
    assert isinstance(failure, ProtocolFailure)
    response.release()
    await rig.server.connections(0)
