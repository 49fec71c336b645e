"""Reading past what a callback deals with (`read_past` of `gateway.domain.upstream`), with each upstream client."""

from __future__ import annotations

import asyncio

import pytest

from gateway.domain.upstream import ResetFailure, Response, read_past
from gateway.transport.h1 import H1Client
from tests.transport.contract.rig import Rig
from tests.transport.wire_server import CHUNKED_HEAD, Peer, chunk

pytestmark = pytest.mark.filterwarnings("error")


class Taker:
    """Deals with each read until `last` has come; `taken` in order."""

    def __init__(self, last: bytes = b"last") -> None:
        self.taken: list[bytes] = []
        self.last = last
        self.seen = asyncio.Event()  # the latest read

    def __call__(self, data: bytes) -> bool:
        self.taken.append(data)
        self.seen.set()
        return self.last not in data


async def stepwise(rig: Rig, *parts: bytes) -> tuple[Response, list[asyncio.Event]]:
    """An answer whose parts are sent one by one: each when its event is set."""
    gates = [asyncio.Event() for _ in parts]

    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED_HEAD)
        for gate, part in zip(gates, parts, strict=True):
            await gate.wait()
            await peer.send(part)

    await rig.start(handler)
    return await rig.get(), gates


async def until_taken(taker: Taker) -> None:
    await taker.seen.wait()
    taker.seen.clear()


async def test_reads_are_taken_in_order_until_one_is_left(rig: Rig) -> None:
    response, gates = await stepwise(rig, chunk(b"one"), chunk(b"two"), chunk(b"last"), chunk(b"more") + chunk(b""))
    taker = Taker()
    reading = asyncio.create_task(read_past(response, taker))
    for gate in gates[:3]:
        gate.set()
        await until_taken(taker)
    assert await reading == b"last"
    assert taker.taken == [b"one", b"two", b"last"]
    gates[3].set()
    assert await read_past(response, taker) == b""
    assert taker.taken == [b"one", b"two", b"last", b"more"]
    response.release()


async def test_what_has_arrived_before_is_taken_too(rig: Rig) -> None:
    response, gates = await stepwise(rig, chunk(b"one") + chunk(b"two"), chunk(b"last") + chunk(b""))
    gates[0].set()
    assert await response.read_some() == b"onetwo"
    gates[1].set()
    taker = Taker(last=b"nothing")
    assert await read_past(response, taker) == b""
    assert b"".join(taker.taken) == b"last"
    response.release()


async def test_a_body_that_ends_early_fails_after_what_was_taken(rig: Rig) -> None:
    response, gates = await stepwise(rig, chunk(b"one"))
    taker = Taker()
    gates[0].set()
    with pytest.raises(ResetFailure):
        await read_past(response, taker)
    assert taker.taken == [b"one"]
    response.abort()


async def test_an_error_in_the_callback_is_the_reader_s(rig: Rig) -> None:
    response, gates = await stepwise(rig, chunk(b"one"), chunk(b"two") + chunk(b""))
    calls: list[bytes] = []

    def take(data: bytes) -> bool:
        calls.append(data)
        raise ValueError("a defect")

    reading = asyncio.create_task(read_past(response, take))
    gates[0].set()
    with pytest.raises(ValueError, match="a defect"):
        await reading
    gates[1].set()
    assert calls == [b"one"]
    response.abort()


async def test_a_cancelled_reader_s_callback_is_called_no_more(rig: Rig) -> None:
    response, gates = await stepwise(rig, chunk(b"one"), chunk(b"two"), chunk(b"last") + chunk(b""))
    taker = Taker()
    reading = asyncio.create_task(read_past(response, taker))
    gates[0].set()
    await until_taken(taker)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    gates[1].set()
    gates[2].set()
    rest = b""
    while data := await response.read_some():
        rest += data
    assert (taker.taken, rest) == ([b"one"], b"twolast")
    response.release()


async def test_a_reader_on_its_way_sees_what_arrives_meanwhile(rig: Rig) -> None:
    """Its callback left a read to it, and further bytes come before it runs."""
    response, gates = await stepwise(rig, chunk(b"last"), chunk(b"more") + chunk(b""))
    taker = Taker()
    reading = asyncio.create_task(read_past(response, taker))
    gates[0].set()
    gates[1].set()
    assert await reading in (b"last", b"lastmore")
    assert await read_past(response, taker) == b""
    assert b"".join(taker.taken) == b"lastmore"
    response.release()


async def test_the_own_client_does_not_wake_the_reader_for_what_is_taken() -> None:
    rig, tasks = Rig(H1Client), []

    def take(data: bytes) -> bool:
        tasks.append(asyncio.current_task())
        seen.set()
        return b"last" not in data

    seen = asyncio.Event()
    response, gates = await stepwise(rig, chunk(b"one"), chunk(b"two"), chunk(b"last") + chunk(b""))
    reading = asyncio.create_task(read_past(response, take))
    for gate in gates:
        gate.set()
        await seen.wait()
        seen.clear()
    await reading
    assert tasks[:2] == [None, None]
    response.release()
    await rig.stop()
