"""Whatever bytes arrive, in whatever pieces: no more answers than requests, no exception, nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.listening import CHAT, statuses
from tests.memory_transport import MemoryTransport, Wireless, wireless
from tests.waiting import turns

DECOY = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
BODIES = (b"", b"{}", b'{"model": "nope", "messages": []}', DECOY, DECOY * 200, b"0\r\n\r\n" + DECOY, b"\r\n\r\n")
NASTY = (
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\r\n\r\n", b"\x7f", b"\xff", b"5", b"0\r\n\r\n"),
    *(b", chunked", b"HTTP/1.0", b"content-length: 7\r\n", b"content-length: 0\r\n", b"host: y\r\n", b" folded: x\r\n"),
    *(b"transfer-encoding: chunked\r\n", b"transfer-encoding: identity\r\n", b"connection: close\r\n"),
    *(b"expect: 100-continue\r\n", b"x: " + b"y" * 70_000, b"a: b\r\n" * 120, DECOY),
)
FIELDS = (
    *(
        b"content-length: 7\r\n",
        b"content-length: 0\r\n",
        b"content-length: +0\r\n",
        b"Transfer-Encoding : chunked\r\n",
    ),
    *(b"transfer-encoding: chunked\r\n", b"transfer-encoding: identity\r\n", b"transfer-encoding: chunked, x\r\n"),
    *(b"x: y\n", b"x: \0\r\n", b" folded\r\n", b"x\r\n", b"host: x\r\n", b"connection: upgrade\r\n"),
)
PATHS = (
    *("/health", "/nowhere", "/version", CHAT, "/v1/chat%2Fcompletions"),
    *("/v1/messages", "/v1/messages/count_tokens", "/tokenize"),
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A well-formed one."""
    method = draw(st.sampled_from(("GET", "POST", "POST", "PUT", "HEAD", "OPTIONS")))
    lines = [f"{method} {draw(st.sampled_from(PATHS))} HTTP/1.1", "host: x"]
    lines += draw(st.lists(st.sampled_from(("accept: */*", "x-a:", "X-B: \t c ", "expect: 100-continue")), max_size=3))
    body = draw(st.sampled_from(BODIES))
    if draw(st.booleans()):
        size = draw(st.integers(1, 3000))
        cut = [body[at : at + size] for at in range(0, len(body), size)]
        extension = draw(st.sampled_from((b"", b";a=b", b';a="b c"')))
        trailer = draw(st.sampled_from((b"", b"x-t: y\r\n")))
        body = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in cut) + b"0\r\n" + trailer + b"\r\n"
        lines.append("Transfer-Encoding: chunked")
    elif body or draw(st.booleans()):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Requests of which some bytes were added, taken out or changed."""
    sent = draw(st.lists(st.tuples(requests(), st.sampled_from((*[b""] * 9, *FIELDS))), min_size=1, max_size=4))
    data = bytearray(b"".join(one.replace(b"host: x\r\n", b"host: x\r\n" + more, 1) for one, more in sent))
    for _ in range(draw(st.sampled_from((0, 0, 1, 3)))):
        at = draw(st.integers(0, max(0, min(len(data) - 1, 400))))
        kind = draw(st.sampled_from(("insert", "delete", "change", "cut")))
        if kind == "insert":
            data[at:at] = draw(st.sampled_from(NASTY))
        elif kind == "delete":
            del data[at : at + draw(st.integers(1, 4))]
        elif kind == "change" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[len(data) - at :]
    return bytes(data)


SPLITS = st.lists(st.integers(1, 300), max_size=12)


class Gateway:
    """An app that lives as long as the module, with what its loop complained of."""

    def __init__(self, data: str) -> None:
        self.complaints: list[Any] = []
        self.runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._data = data
        self.gateway: Wireless = self.runner.run(self._open())

    async def _open(self) -> Wireless:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.complaints.append(context))
        return await self._stack.enter_async_context(wireless(self._data))

    def close(self) -> None:
        self.runner.run(self._stack.aclose())
        self.runner.close()

    def answers(self, pieces: list[bytes]) -> MemoryTransport:
        return self.runner.run(self._exchange(pieces))

    async def _exchange(self, pieces: list[bytes]) -> MemoryTransport:
        transport = self.gateway.connect()
        for piece in pieces:
            if not transport.reading:
                await self._quiet()
            if transport.reading:
                transport.receive(piece)
            await turns()
        await self._quiet()
        assert transport.reading or transport.closed
        after = statuses(bytes(transport.written))
        if after and after[-1] in (400, 408, 413, 431) and b"connection: close" in transport.written:
            assert transport.ended or transport.closed
            transport.receive(DECOY)
            await self._quiet()
            assert statuses(bytes(transport.written)) == after
        transport.close()
        await self._quiet()
        await turns()
        self.nothing_left()
        return transport

    async def _quiet(self) -> None:
        """Nothing is being answered, but what waits for its body."""
        for _ in range(400):
            await turns()
            if not self.gateway.state.tasks:
                await turns()  # what was written last is sent behind the reads
                return

    def nothing_left(self) -> None:
        gateway, listener = self.gateway, self.gateway.listener
        assert self.complaints == []
        assert not gateway.state.connections
        assert not listener.connections
        assert not listener._by_address
        for waiting in (listener.heads, listener.idle, listener.bodies, listener.crowded, listener.closing):
            assert not waiting
        assert not gateway.app.gateway.active


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(str(tmp_path_factory.mktemp("state")))
    yield made
    made.close()


class Oracle:
    """How many requests another reader finds, that takes more for a request than we do."""

    def __init__(self, data: bytes) -> None:
        self.heads = 0
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        with suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.heads += 1


def split(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in (*pieces, data) if piece]


@given(mutated(), SPLITS)
@settings(max_examples=300)
def test_there_are_no_more_answers_than_requests(gateway: Gateway, data: bytes, sizes: list[int]) -> None:
    found = statuses(bytes(gateway.answers(split(data, sizes)).written))
    requests = Oracle(data).heads
    refused = bool(found) and found[-1] in (400, 405, 413, 431)
    assert len(found) <= requests + refused, (found, requests)


@given(st.lists(requests(), min_size=1, max_size=5), SPLITS)
@settings(max_examples=150)
def test_well_formed_requests_are_answered_in_order_until_one_is_answered_early(
    gateway: Gateway, sent: list[bytes], sizes: list[int]
) -> None:
    data = b"".join(sent)
    assert Oracle(data).heads == len(sent)
    whole, apart = gateway.answers([data]), gateway.answers(split(data, sizes))
    alone = [statuses(bytes(gateway.answers([request]).written))[0] for request in sent]
    for transport in (whole, apart):
        found = statuses(bytes(transport.written))
        assert found == alone[: len(found)]
        if len(found) < len(sent):
            assert b"connection: close\r\n" in transport.written


@given(st.binary(max_size=300), SPLITS)
@settings(max_examples=150)
def test_noise_is_one_refusal_at_most(gateway: Gateway, data: bytes, sizes: list[int]) -> None:
    found = statuses(bytes(gateway.answers(split(data, sizes)).written))
    assert found in ([], [400])
