"""Chunked bodies of requests, in pieces of any size."""

from __future__ import annotations

from gateway.http.chunked import ChunkedBody


def test_a_chunked_body_is_the_same_however_it_is_cut() -> None:
    body = b'{"a": 1}' * 40
    wire = b"%x\r\n%b\r\n1;x=y\r\n!\r\n0\r\nx: y\r\n\r\nrest" % (len(body), body)
    for at in range(1, len(wire) - 4):
        chunked = ChunkedBody()
        first = chunked.feed(wire[:at])
        assert chunked.rest is None
        rest = chunked.feed(wire[at:])
        assert first + rest == body + b"!"
        assert bytes(chunked.rest or b"") == b"rest"
    chunked = ChunkedBody()
    assert b"".join(chunked.feed(wire[at : at + 1]) for at in range(len(wire) - 4)) == body + b"!"
    assert chunked.rest == b""
