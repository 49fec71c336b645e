"""Chunks that come whole are read as the parser reads them, which is told of all others."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.transport.whole_chunks import CHUNKS_MOST, whole_chunk, whole_chunks

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


@pytest.mark.parametrize("data", [b"-2\r\n", b"-0\r\n\r\n", b"", b"\r\n", b"f" * 70_000, b"5" * 9 + b"\r\n"])
def test_what_only_looks_like_a_size_is_none(data: bytes) -> None:
    assert whole_chunk(data) is None
    assert whole_chunks(data) is None
