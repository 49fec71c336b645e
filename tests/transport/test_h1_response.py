"""The body of an answer as a connection reads it: what the parser reads of it, however it is cut."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.h1_connection import H1Connection
from gateway.transport.h1_response import H1Response
from tests.transport.test_whole_chunks import (
    HEAD,
    LAST,
    Parsed,
    chunk,
    contents,
    many,
    pieces,
)
from tests.waiting import turns


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


def connection() -> H1Connection:
    made = H1Connection(asyncio.get_running_loop(), lambda _: None, lambda _: None)
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
