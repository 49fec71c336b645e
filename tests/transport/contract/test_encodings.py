"""Encoded bodies, and any body in any framing and any cut."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.upstream import ProtocolFailure, ResetFailure, TooLarge
from tests.transport.contract.rig import MAKERS, MIB, Maker, Rig
from tests.transport.wire_server import CHUNKED_HEAD, Peer, always, answer, chunk

pytestmark = pytest.mark.filterwarnings("error")


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
