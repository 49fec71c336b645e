"""What every upstream client promises, held against servers that send exact bytes. See `gateway.upstream.client`."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.upstream.aio import AioClient
from gateway.upstream.client import (
    Client,
    ConnectFailure,
    ProtocolFailure,
    ResetFailure,
    Response,
    SilenceFailure,
    StaleConnection,
    TooLarge,
    UpstreamFailure,
)
from gateway.upstream.connect import open_client
from gateway.upstream.h1 import H1Client

from .wire_server import CHUNKED_HEAD, Handler, Peer, WireServer, always, answer, chunk, header, once

pytestmark = pytest.mark.filterwarnings("error")

Maker = Callable[..., H1Client | AioClient]
MAKERS: list[Maker] = [H1Client, AioClient]
MIB = 1024 * 1024


@pytest.fixture(params=MAKERS, ids=["h1", "aio"])
def make(request: pytest.FixtureRequest) -> Maker:
    maker: Maker = request.param
    return maker


class Rig:
    """A server and a client of it."""

    def __init__(self, make: Maker) -> None:
        self.make = make
        self._stack = contextlib.AsyncExitStack()
        self.server: WireServer
        self.client: H1Client | AioClient

    async def start(self, handler: Handler, max_idle: float = 4.0) -> None:
        self.server = await self._stack.enter_async_context(WireServer(handler))
        self.client = self.make(self.server.origin, connect_timeout=2.0, max_idle=max_idle)

    async def stop(self) -> None:
        await self.client.close()
        try:
            await self.server.connections(0)
        finally:
            await self._stack.aclose()

    async def get(self, path: str = "/", **options: bool) -> Response:
        return await self.client.send("GET", path, [], b"", **options)

    async def post(self, body: bytes = b"{}") -> Response:
        return await self.client.send("POST", "/", [("content-type", "application/json")], body)

    async def whole(self, path: str = "/") -> bytes:
        response = await self.get(path)
        body = await response.read_all(100 * MIB)
        response.release()
        return body


@pytest.fixture
async def rig(make: Maker) -> AsyncIterator[Rig]:
    """Fails the test that leaves a connection open after `close`."""
    rig = Rig(make)
    yield rig
    await rig.stop()


async def drain(response: Response) -> tuple[bytes, UpstreamFailure | None]:
    """What a body yields, and the failure it ended with."""
    got = b""
    try:
        while data := await response.read_some():
            got += data
    except UpstreamFailure as failure:
        return got, failure
    return got, None


async def turns() -> None:
    """Lets the loop handle what the kernel already has: on the loopback that is all that was sent or closed."""
    for _ in range(10):
        await asyncio.sleep(0)


def was_reused(response: Response) -> bool:
    return bool(response.reused)  # type: ignore[attr-defined]  # of both implementations, for statistics


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


# The request


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


# Connections


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
    await turns()
    assert await rig.whole() == b"ok"
    assert len(rig.server.peers) == 2


async def test_a_connection_closed_while_idle_is_replaced_without_a_failure(rig: Rig) -> None:
    await rig.start(once(answer(b"ok")))
    for _ in range(3):
        assert await rig.whole() == b"ok"
        await rig.server.connections(0)
        await turns()


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
    with pytest.raises(StaleConnection) as failure:
        await rig.client.send(method, "/", [], b"{}" if method == "POST" else b"")
    assert failure.value.retry_same
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
    if not isinstance(loop, asyncio.SelectorEventLoop):
        pytest.skip("uvloop's resolver cannot be replaced")
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
    async with asyncio.timeout(2):
        with pytest.raises(ConnectFailure):
            await client.send("POST", "/", [], b"{}")
    await client.close()


async def test_a_cancel_during_the_connect_leaves_nothing_behind(make: Maker, deaf_port: int) -> None:
    client = make(("http", "127.0.0.1", deaf_port), connect_timeout=30.0)
    sending = asyncio.create_task(client.send("POST", "/", [], b"{}"))
    await turns()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await client.close()


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
    await asyncio.sleep(0)
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
    await asyncio.sleep(0)
    reason = SilenceFailure("nothing for 30 s")
    response.abort(reason)
    for waiting in (reading, response.read_some(), response.read_all(10)):
        with pytest.raises(SilenceFailure) as raised:
            await waiting
        assert raised.value is reason
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
        await turns()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    async with asyncio.timeout(1):
        await rig.client.close()  # would wait for the flush
    left.set()
    async with asyncio.timeout(2):
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
    await asyncio.sleep(0)
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
    before = -1
    while before != handed:  # until nothing has moved for a while
        before = handed
        await asyncio.sleep(0.1)
    assert handed < total - 20 * MIB  # the kernel's socket buffers take a few MiB
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
    await turns()
    assert 0 < response.size <= 512 * 1024
    response.release()


# Encodings


def encoded(how: str, data: bytes) -> bytes:
    if how == "raw deflate":
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return packer.compress(data) + packer.flush()
    if how == "two gzip members":
        return gzip.compress(data[:3]) + gzip.compress(data[3:])
    return gzip.compress(data) if how == "gzip" else zlib.compress(data)


@pytest.mark.parametrize("how", ["gzip", "two gzip members", "deflate", "raw deflate"])
async def test_an_encoded_body_is_decoded_wherever_it_is_cut(rig: Rig, how: str) -> None:
    packed = encoded(how, b"hello hello hello")
    head = f"Content-Encoding: {'gzip' if 'gzip' in how else 'deflate'}"
    wire = answer(packed, head)
    cuts = iter(range(len(wire) - len(packed), len(wire)))
    count = len(packed)

    async def handler(peer: Peer) -> None:
        while True:
            await peer.request()
            cut = next(cuts)
            await peer.send(wire[:cut], wire[cut:])

    await rig.start(handler)
    for _ in range(count):
        assert await rig.whole() == b"hello hello hello"
    assert len(rig.server.peers) == 1


async def test_events_of_a_compressed_stream_come_one_by_one(rig: Rig) -> None:
    events = [b"data: %d\n\n" % number for number in range(20)]
    go = asyncio.Semaphore(0)

    async def handler(peer: Peer) -> None:
        packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        await peer.request()
        await peer.send(CHUNKED_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"))
        for event in events:
            await peer.send(chunk(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)))
            await go.acquire()
        await peer.send(chunk(packer.flush()) + chunk(b""))
        await peer.until_lost()

    await rig.start(handler)
    response = await rig.get()
    for event in events:
        assert await response.read_some() == event
        go.release()
    assert await response.read_some() == b""
    response.release()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"this is not gzip"),
        ("gzip", gzip.compress(b"cut short" * 100, mtime=0)[:-10]),
        ("gzip", gzip.compress(b"fine", mtime=0) + b"garbage"),
        ("deflate", b"\x78\x9cnot deflate"),
        ("br", b"whatever"),
        ("gzip, gzip", b"whatever"),
    ],
)
async def test_a_body_that_cannot_be_decoded_is_a_protocol_failure(rig: Rig, encoding: str, body: bytes) -> None:
    await rig.start(always(answer(body, f"Content-Encoding: {encoding}")))
    with pytest.raises(ProtocolFailure):
        await rig.whole()


async def test_an_empty_body_may_claim_any_known_encoding(rig: Rig) -> None:
    await rig.start(
        always(
            answer(b"", "Content-Encoding: gzip"),
        )
    )
    assert await rig.whole() == b""


async def test_a_bomb_is_decoded_in_steps_and_stopped_at_the_limit(rig: Rig) -> None:
    bomb = gzip.compress(bytes(64 * MIB))
    await rig.start(always(answer(bomb, "Content-Encoding: gzip")))
    response = await rig.get()
    assert 0 < len(await response.read_some()) <= 256 * 1024
    response.abort()
    with pytest.raises(ResetFailure):
        await response.read_some()
    response = await rig.get()
    with pytest.raises(TooLarge):
        await response.read_all(MIB)
    response.release()


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
    if isinstance(rig.client, AioClient):
        pytest.skip("aiohttp bounds lines and their number, not the head")
    with pytest.raises(ProtocolFailure):
        await rig.whole()


async def test_garbage_instead_of_a_chunk_is_a_failure_and_not_a_hang(rig: Rig) -> None:
    await rig.start(always(CHUNKED_HEAD + chunk(b"fine"), b"zz\r\ngarbage\r\n"))
    response = await rig.get()
    async with asyncio.timeout(2):
        got, failure = await drain(response)
    assert b"fine".startswith(got)
    assert isinstance(failure, ProtocolFailure)
    response.release()
    await rig.server.connections(0)


# Any body, any cut

BODIES = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


@pytest.mark.parametrize("maker", MAKERS, ids=["h1", "aio"])
def test_any_body_in_any_framing_and_any_cut_arrives_unchanged(maker: Maker) -> None:
    @settings(max_examples=40, deadline=None)
    @given(pieces=BODIES, chunked=st.booleans(), packed=st.booleans(), cuts=st.lists(st.integers(0, 3000), max_size=5))
    def check(pieces: list[bytes], chunked: bool, packed: bool, cuts: list[int]) -> None:
        asyncio.run(arrives_unchanged(maker, pieces, chunked, packed, cuts))

    check()


async def arrives_unchanged(maker: Maker, pieces: list[bytes], chunked: bool, packed: bool, cuts: list[int]) -> None:
    body = b"".join(pieces)
    headers = ["Content-Encoding: gzip"] if packed else []
    if packed:
        pieces = [gzip.compress(body)]
    if chunked:
        head = "\r\n".join(["HTTP/1.1 200 OK", "Transfer-Encoding: chunked", *headers, "", ""]).encode()
        wire = head + b"".join(map(chunk, pieces)) + chunk(b"")
    else:
        wire = answer(b"".join(pieces), *headers)
    edges = [0, *sorted(cut for cut in set(cuts) if 0 < cut < len(wire)), len(wire)]
    rig = Rig(maker)
    await rig.start(always(*[wire[start:end] for start, end in pairwise(edges)]))
    for _ in range(2):
        assert await rig.whole() == body
    assert len(rig.server.peers) == 1
    await rig.stop()


async def test_the_origin_decides_which_client_serves_it() -> None:
    clients: list[Client] = [
        open_client((scheme, "127.0.0.1", 443), connect_timeout=1.0) for scheme in ("http", "https")
    ]
    assert [type(client) for client in clients] == [H1Client, AioClient]
    for client in clients:
        await client.close()
