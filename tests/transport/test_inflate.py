"""Compressed bodies in bounded steps."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.upstream import ProtocolFailure
from gateway.transport import inflate
from gateway.transport.inflate import Inflater
from tests.limits import cpu_within


def inflated(pieces: list[bytes], encoding: str = "gzip") -> bytes:
    inflater = Inflater(encoding)
    found = b""
    for piece in pieces:
        inflater.feed(piece)
        while step := inflater.step():
            assert len(step) <= inflate.STEP
            assert inflater.more
            found += step
        assert not inflater.more
    inflater.finish()
    return found


@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(1, 500), st.integers(1, 2000))
def test_members_in_any_pieces_are_one_body(bodies: list[bytes], times: int, size: int) -> None:
    packed = b"".join(gzip.compress(body * times, mtime=0) for body in bodies)
    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
    assert inflated(pieces) == b"".join(body * times for body in bodies)


@given(st.binary(max_size=5000), st.integers(1, 2000))
def test_deflate_in_any_pieces_is_one_body(body: bytes, size: int) -> None:
    packed = zlib.compress(body * 20)
    assert inflated([packed[at : at + size] for at in range(0, len(packed), size)], "deflate") == body * 20


def test_members_without_content_are_refused() -> None:
    inflater = Inflater("gzip")
    inflater.feed(gzip.compress(b"", mtime=0) * (inflate.EMPTY_MOST + 2))
    with pytest.raises(ProtocolFailure, match="members without content"):
        inflater.step()


def test_a_step_is_short_whatever_is_behind_it() -> None:
    """A quarter megabyte of members of one byte: each step takes one of them, and copies nothing else."""
    packed = gzip.compress(b"x", mtime=0) * 12_000
    inflater = Inflater("gzip")
    inflater.feed(packed)
    count = 0
    with cpu_within(2.0):
        while inflater.step():
            count += 1
    assert count == 12_000
