"""What an upstream client sends, and when."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from gateway.transport.aio import AioClient
from gateway.transport.h1 import H1Client
from tests.transport.contract.rig import MIB, Rig
from tests.transport.wire_server import Peer, always, answer, header

pytestmark = pytest.mark.filterwarnings("error")


async def test_a_request_carries_what_it_should_and_nothing_else(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    seen: list[tuple[str, bytes]] = []

    async def handler(peer: Peer) -> None:
        while True:
            seen.append(await peer.request())
            await peer.send(answer(b"", "Set-Cookie: a=b", "Location: /else", status="302 Found"))

    await rig.start(handler)
    for body in (b'{"a": 1}', b""):
        response = await rig.client.send("POST", "/v1/x%2Fy?q=%20", [("Content-Type", "application/json")], body)
        assert response.status == 302
        response.release()
    for (head, got), body in zip(seen, (b'{"a": 1}', b""), strict=True):
        assert head.startswith("POST /v1/x%2Fy?q=%20 HTTP/1.1\r\n")
        assert header(head, "host") == f"127.0.0.1:{rig.server.origin[2]}"
        assert header(head, "accept-encoding") == "identity"
        assert header(head, "content-length") == str(len(body))
        assert header(head, "content-type") == "application/json"
        for name in ("cookie", "user-agent", "accept", "transfer-encoding", "expect"):
            assert header(head, name) is None
        assert got == body


@pytest.mark.parametrize("bad", [("x", "1\r\nx-smuggled: 2"), ("x", "1\nx-smuggled: 2")])
async def test_a_line_break_in_a_header_is_refused(rig: Rig, bad: tuple[str, str]) -> None:
    await rig.start(always(answer()))
    with pytest.raises(ValueError):
        await rig.client.send("POST", "/", [bad], b"")


@pytest.mark.parametrize("size", [100, 65 * 1024, 300 * 1024, 16 * MIB])
async def test_a_body_of_any_size_arrives_whole(rig: Rig, size: int) -> None:
    async def handler(peer: Peer) -> None:
        while True:
            _, body = await peer.request()
            await peer.send(answer(hashlib.sha256(body).hexdigest().encode()))

    await rig.start(handler)
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    for _ in range(2):
        response = await rig.post(body)
        assert await response.read_all(100) == hashlib.sha256(body).hexdigest().encode()
        response.release()
    assert len(rig.server.peers) == 1


async def test_a_large_body_waits_for_the_backend(rig: Rig) -> None:
    """The client's own buffer stays small while the backend does not read."""
    may_end = asyncio.Event()
    await rig.start(lambda peer: may_end.wait())
    sending = asyncio.create_task(rig.post(bytes(64 * MIB)))
    peer = await rig.server.peer(0)
    await peer.reader.readexactly(1000)  # the request is on its way; from here the stream's own buffer fills
    transport = client_transport(rig.client)
    assert transport.get_write_buffer_size() < MIB
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    may_end.set()


def client_transport(client: H1Client | AioClient) -> asyncio.Transport:
    """The transport of the one connection of a client."""
    if isinstance(client, H1Client):
        (connection,) = client._open
        transport = connection.transport
    else:
        (attempt,) = client._busy
        transport = attempt.transport  # type: ignore[union-attr]  # a request under way is an attempt
    assert transport is not None
    return transport


@pytest.mark.parametrize("reset", [False, True], ids=["kept open", "closed with a reset"])
async def test_an_early_answer_is_delivered_while_the_body_is_still_sent(rig: Rig, reset: bool) -> None:
    may_end = asyncio.Event()

    async def handler(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(answer(b"too large", "Connection: close", status="413 Too Large"))
        if not reset:
            await may_end.wait()  # closing with unread bytes makes the kernel send an RST

    await rig.start(handler)
    response = await rig.post(bytes(8 * MIB))
    assert response.status == 413
    assert await response.read_all(100) == b"too large"
    response.release()
    may_end.set()
    await rig.server.connections(0)


async def test_a_connection_with_an_unfinished_request_is_not_used_again(rig: Rig) -> None:
    bodies: list[int] = []

    async def handler(peer: Peer) -> None:
        if peer.number == 0:
            await peer.reader.readuntil(b"\r\n\r\n")
            await peer.send(answer(b"early", status="400 Bad Request"))
        else:
            bodies.append(len((await peer.request())[1]))
            await peer.send(answer(b"fine"))
        await peer.until_lost()

    await rig.start(handler)
    response = await rig.post(bytes(8 * MIB))
    assert await response.read_all(100) == b"early"
    response.release()
    response = await rig.post(b"next")
    assert await response.read_all(100) == b"fine"
    response.release()
    assert bodies == [4]
