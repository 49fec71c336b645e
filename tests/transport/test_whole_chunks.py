"""Chunks that come whole are read as the parser reads them, which is told of all others."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.transport.h1_connection import Connection
from gateway.transport.h1_response import H1Response
from gateway.transport.whole_chunks import CHUNKS_MOST, whole_chunk, whole_chunks
from tests.waiting import turns

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


class Parsed:
    """What the parser makes of an answer."""

    def __init__(self, data: bytes) -> None:
        self.content, self.complete, self.failed = b"", False, False
        self._open = 0  # chunks that have begun and not ended
        parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserError:
            self.failed = True

    def on_body(self, data: bytes) -> None:
        self.content += data

    def on_chunk_header(self) -> None:
        self._open += 1

    def on_chunk_complete(self) -> None:
        self._open -= 1

    def on_message_complete(self) -> None:
        self.complete = True

    @property
    def between_chunks(self) -> bool:
        return not (self._open or self.complete or self.failed)


contents = st.binary(min_size=1, max_size=40)


def odd(written: bytes, content: bytes) -> bytes:
    return written % len(content) + content + b"\r\n"


def ended(content: bytes, end: bytes) -> bytes:
    return b"%x\r\n" % len(content) + content + end


# Whole chunks, and what only looks like one: other ways to write a size, extensions, trailers, lengths that are wrong.
sizes = [
    b"%X\r\n",
    b"0%x\r\n",
    b"+%x\r\n",
    b"-%x\r\n",
    b"0x%x\r\n",
    b"%x \r\n",
    b"%x;a=b\r\n",
    b" %x\r\n",
    b"%x_0\r\n",
    b"%xg\r\n",
]
ends = [b"\r", b"\n", b"", b"xx", b"\n\n", b"\r\r", b"\r\n\r\n", b"x\r\n"]
lasts = [b"0\r\nx-trailer: 1\r\n\r\n", b"0\r\n", b"\r\n", b"00\r\n\r\n", b"a", b"1\r\n", b""]
looks_like_one = st.one_of(
    st.builds(odd, st.sampled_from(sizes), contents),
    st.builds(ended, contents, st.sampled_from(ends)),
    st.sampled_from(lasts),
)
pieces = st.one_of(contents.map(chunk), st.just(LAST), looks_like_one)
many = settings(max_examples=1000)


def cut_inside(content: bytes) -> list[bytes]:
    """The reads of one chunk whose content looks like a chunk, and comes alone."""
    inner = chunk(content)
    return [b"%x\r\n" % len(inner), inner, b"\r\n"]


reads = st.one_of(
    st.lists(st.one_of(contents.map(cut_inside), pieces.map(lambda piece: [piece])), max_size=5).map(
        lambda made: [read for one in made for read in one]
    ),
    st.lists(pieces, max_size=4).map(lambda made: [bytes([byte]) for byte in b"".join(made)]),
)


@many
@given(st.lists(pieces, max_size=4).map(b"".join))
def test_what_is_taken_for_whole_chunks_is_read_as_by_the_parser(data: bytes) -> None:
    parsed, one, several = Parsed(HEAD + data), whole_chunk(data), whole_chunks(data)
    if one is not None:
        assert parsed.between_chunks
        assert one == parsed.content
        assert several == (one, False)
    if several is not None:
        content, last = several
        assert content == parsed.content
        assert (parsed.complete, parsed.failed) == (last, False)
        assert last or parsed.between_chunks


@given(st.lists(contents, min_size=1, max_size=CHUNKS_MOST - 1), st.booleans())
def test_a_few_chunks_as_servers_write_them_are_recognised(parts: list[bytes], ends: bool) -> None:
    data = b"".join(map(chunk, parts))
    assert whole_chunks(data + LAST * ends) == (b"".join(parts), ends)
    assert whole_chunks(data + chunk(b"x") * CHUNKS_MOST) is None
    assert whole_chunk(data) == (parts[0] if len(parts) == 1 else None)


@given(st.integers(1, 2**20))
def test_a_chunk_of_any_size_is_recognised(size: int) -> None:
    assert whole_chunk(chunk(bytes(size))) == bytes(size)


heads = st.sampled_from([HEAD, HEAD.replace(b"transfer-encoding: chunked", b"content-length: 30")])


class Transport(asyncio.Transport):
    """Keeps nothing; reading is never paused."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def setsockopt(self, *args: object) -> None:
        pass

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass


def connection() -> Connection:
    made = Connection(asyncio.get_running_loop(), lambda _: None, lambda _: None)
    made.connection_made(Transport())
    return made


@many
@given(
    reads, st.sampled_from([HEAD, HEAD.replace(b"transfer-encoding: chunked", b"content-length: 30")]), st.booleans()
)
async def test_a_connection_reads_a_body_as_the_parser_however_it_is_cut(
    made: list[bytes], head: bytes, together: bool
) -> None:
    made = [head + made[0], *made[1:]] if together and made else [head, *made]
    reader = connection()
    response = reader.begin(b"GET / HTTP/1.1\r\n\r\n", b"", reused=False)
    found = b""
    for read in filter(None, made):
        reader.receive(read)
        found += unread(response)
        if response.complete or response.failure is not None:
            break
    parsed = Parsed(b"".join(made))
    assert (found, response.complete) == (parsed.content, parsed.complete)
    assert (response.failure is not None) == (parsed.failed and not parsed.complete)


@many
@given(reads, heads)
async def test_who_takes_each_read_at_once_gets_what_the_parser_reads(made: list[bytes], head: bytes) -> None:
    reader = connection()
    response = reader.begin(b"GET / HTTP/1.1\r\n\r\n", b"", reused=False)
    reader.receive(head)
    taken: list[bytes] = []
    reading = asyncio.create_task(response.read_past(Taking(taken)))
    await turns()
    for read in filter(None, made):
        reader.receive(read)
        if response.complete or response.failure is not None:
            break
    parsed = Parsed(head + b"".join(made))
    if parsed.complete:
        async with asyncio.timeout(5):
            await reading
    reading.cancel()
    assert b"".join(taken) + unread(response) == parsed.content
    assert response.complete == parsed.complete


@pytest.mark.parametrize("data", [b"-2\r\n", b"-0\r\n\r\n", b"", b"\r\n", b"f" * 70_000, b"5" * 9 + b"\r\n"])
def test_what_only_looks_like_a_size_is_none(data: bytes) -> None:
    assert whole_chunk(data) is None
    assert whole_chunks(data) is None


async def test_the_parser_is_not_told_of_a_whole_chunk_that_is_taken_at_once() -> None:
    reader = connection()
    response = reader.begin(b"GET / HTTP/1.1\r\n\r\n", b"", reused=False)
    reader.receive(HEAD + chunk(b"first"))
    assert unread(response) == b"first"
    taken: list[bytes] = []
    reading = asyncio.create_task(response.read_past(Taking(taken)))
    await turns()
    told: list[bytes] = []
    parser, reader._parser = reader._parser, Told(told)
    reader.receive(chunk(b"second"))
    reader.receive(chunk(b"third")[:4])
    reader._parser = parser
    parser.feed_data(b"".join(told))
    reader.receive(chunk(b"third")[4:] + LAST)
    assert await reading == b""
    assert (taken, told) == ([b"second", b"third"], [chunk(b"third")[:4]])


def unread(response: H1Response) -> bytes:
    """What has come of its body, taken without waiting."""
    return response._take() if response.pieces else b""


class Taking:
    """Takes every read."""

    def __init__(self, taken: list[bytes]) -> None:
        self._taken = taken

    def __call__(self, data: bytes) -> bool:
        self._taken.append(data)
        return True


class Told:
    """A parser that keeps what it is told."""

    def __init__(self, told: list[bytes]) -> None:
        self._told = told

    def feed_data(self, data: bytes) -> None:
        self._told.append(data)
