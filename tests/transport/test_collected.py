"""When what has come of streams is passed on, and what is written is sent: behind the reads of its round, in order, and
never at another connection's expense."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.collected import AT_ONCE, PART, SINGLE, UNCOLLECTED, CollectedTransport, round_of
from gateway.transport.h1_connection import H1Connection
from gateway.transport.h1_response import H1Response
from tests.waiting import turns


class Wire(asyncio.Transport):
    """Notes what is done to it, in `log`, which several may have in common."""

    def __init__(self, name: str = "", log: list[tuple[str, str, bytes]] | None = None) -> None:
        super().__init__()
        self.name = name
        self.log = [] if log is None else log
        self.closing = False
        self.error: Exception | None = None

    def write(self, data: Any) -> None:
        if self.error is not None:
            raise self.error
        self.log.append((self.name, "write", bytes(data)))

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def write_eof(self) -> None:
        self.log.append((self.name, "eof", b""))

    def close(self) -> None:
        self.closing = True
        self.log.append((self.name, "close", b""))

    def abort(self) -> None:
        self.closing = True
        self.log.append((self.name, "abort", b""))

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 7

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def setsockopt(self, *_: object) -> None:
        pass

    @property
    def sent(self) -> bytes:
        return b"".join(data for name, what, data in self.log if what == "write" and name == self.name)


@contextmanager
def complaints() -> Iterator[list[type[BaseException]]]:
    """What the event loop was told of meanwhile."""
    found: list[type[BaseException]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(type(context["exception"])))
    try:
        yield found
    finally:
        loop.set_exception_handler(None)


def collected(*wires: Wire) -> list[CollectedTransport]:
    return [CollectedTransport(wire, asyncio.get_running_loop()) for wire in wires]


async def test_what_is_written_in_one_round_is_sent_behind_it_in_order_one_write_for_each_connection() -> None:
    log: list[tuple[str, str, bytes]] = []
    first, second = collected(Wire("first", log), Wire("second", log))
    first.write(b"a")
    second.write(b"b")
    first.write(memoryview(b"c"))
    assert log == []
    assert (first.get_write_buffer_size(), second.get_write_buffer_size()) == (9, 8)
    await turns()
    assert log == [("first", "write", b"ac"), ("second", "write", b"b")]
    assert first.get_write_buffer_size() == 7
    await turns()
    assert len(log) == 2


async def test_what_would_fill_a_transports_buffer_is_sent_at_once_behind_what_was_kept() -> None:
    """So that a transport pauses its writer in time."""
    wire = Wire()
    (transport,) = collected(wire)
    transport.write(b"a")
    transport.write(b"b" * AT_ONCE)
    assert [len(data) for _, _, data in wire.log] == [1, AT_ONCE]
    transport.write(b"c")
    transport.writelines([b"d", b"e"])
    assert wire.sent[-3:] == b"cde"
    await turns()
    assert wire.sent[-3:] == b"cde"


async def test_the_end_of_a_connection_comes_behind_what_was_written() -> None:
    for end in ("write_eof", "close"):
        wire = Wire()
        (transport,) = collected(wire)
        transport.write(b"last")
        getattr(transport, end)()
        assert [what for _, what, _ in wire.log] == ["write", end.removeprefix("write_")]


async def test_an_aborted_connection_sends_nothing_more() -> None:
    wire = Wire()
    (transport,) = collected(wire)
    transport.write(b"a")
    transport.abort()
    assert transport.get_write_buffer_size() == 7
    await turns()
    assert [what for _, what, _ in wire.log] == ["abort"]


async def test_a_connection_that_was_lost_meanwhile_is_not_written_to() -> None:
    wire = Wire()
    (transport,) = collected(wire)
    transport.write(b"a")
    wire.closing = True
    await turns()
    assert wire.log == []


async def test_a_connection_that_cannot_be_written_to_harms_no_other() -> None:
    broken, fine = Wire(), Wire()
    broken.error = MemoryError()
    one, other = collected(broken, fine)
    one.write(b"a")
    other.write(b"b")
    with complaints() as found:
        await turns()
    assert fine.sent == b"b"
    assert [what for _, what, _ in broken.log] == ["abort"]
    assert found == [MemoryError]


async def test_where_each_round_has_one_part_it_is_not_kept_until_there_are_more_again() -> None:
    first, second = Wire(), Wire()
    one, other = collected(first, second)
    for _ in range(SINGLE):
        one.write(b"a")
        assert not first.sent.endswith(b"aa" * SINGLE)
        await turns()
    before = len(first.log)
    for number in range(UNCOLLECTED):
        one.write(b"b")
        assert len(first.log) == before + number + 1
    one.write(b"c")
    other.write(b"d")
    assert (first.sent[-1:], second.sent) == (b"b", b"")
    await turns()
    assert (first.sent[-1:], second.sent) == (b"c", b"d")
    one.write(b"e")
    assert first.sent[-1:] == b"c", "there were more again"


async def test_nothing_is_kept_of_an_event_loop_that_has_ended() -> None:
    def use() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.new_event_loop()

        async def write() -> None:
            (transport,) = collected(Wire())
            transport.write(b"a")
            await turns()

        loop.run_until_complete(write())
        loop.close()
        assert round_of(loop).writers == []
        return weakref.ref(loop)

    gone = await asyncio.to_thread(use)
    gc.collect()
    assert gone() is None


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 3, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1]), st.booleans()),
    max_size=60,
)


@given(STEPS, STEPS)
async def test_each_connection_sends_what_was_written_to_it_in_order(
    steps: list[tuple[int, int, bool]], more: list[tuple[int, int, bool]]
) -> None:
    wires = [Wire(), Wire(), Wire()]
    transports = collected(*wires)
    expected = [b"", b"", b""]
    for number, (which, size, ends_round) in enumerate([*steps, *more]):
        data = bytes([number % 256]) * size
        transports[which].write(data)
        expected[which] += data
        if ends_round:
            await turns()
            assert [wire.sent for wire in wires] == expected
    for transport in transports:
        transport.close()
    assert [wire.sent for wire in wires] == expected


# -- what has come of streams -----------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


class Stream:
    """A connection in the middle of a stream. `log`: whose chunks were followed."""

    def __init__(self, name: str = "", log: list[str] | None = None) -> None:
        self.connection = H1Connection(asyncio.get_running_loop(), lambda _: None, lambda _: None)
        self.wire = Wire(name)
        self.connection.connection_made(self.wire)
        self.response: H1Response = self.connection.begin(b"GET / HTTP/1.1\r\n\r\n", b"", reused=False)
        self.followed: list[bytes] = []
        self._name, self._log = name, [] if log is None else log
        self.connection.data_received(HEAD + chunk(b"begun"))
        assert self.response._take() == b"begun"
        self.reading = asyncio.create_task(self.response.read_past(self._follow))

    def _follow(self, data: bytes) -> bool:
        self._log.append(self._name)
        self.followed.append(data)
        return True

    def come(self, data: bytes) -> None:
        self.connection.data_received(data)


async def test_the_streams_of_one_round_are_passed_on_behind_its_reads_in_their_order() -> None:
    log: list[str] = []
    first, second = Stream("first", log), Stream("second", log)
    await turns()
    first.come(chunk(b"a"))
    second.come(chunk(b"b"))
    assert log == []
    await turns()
    assert log == ["first", "second"]


async def test_where_each_round_has_one_stream_its_parts_are_passed_on_at_once() -> None:
    stream = Stream()
    (transport,) = collected(Wire())
    for _ in range(SINGLE + 1):  # the request was written in the first
        transport.write(b"a")
        await turns()
    stream.come(chunk(b"a"))
    assert stream.followed == [b"a"]


async def test_what_came_before_the_end_or_the_loss_of_a_connection_is_passed_on_first() -> None:
    for is_lost in (True, False):
        stream, other = Stream(), Stream()
        await turns()
        other.come(chunk(b"b"))
        stream.come(chunk(b"a"))
        if is_lost:
            stream.connection.connection_lost(None)
        else:
            stream.connection.eof_received()
        assert (other.followed, stream.followed) == ([b"b"], [b"a"])
        await turns()
        assert (other.followed, stream.followed) == ([b"b"], [b"a"])


async def test_a_large_part_is_passed_on_at_once_behind_what_waits() -> None:
    stream = Stream()
    await turns()
    stream.come(chunk(b"a"))
    stream.come(chunk(b"b" * PART))
    assert stream.followed == [b"a", b"b" * PART]


async def test_a_connection_that_was_dropped_meanwhile_passes_nothing_on() -> None:
    stream, other = Stream(), Stream()
    await turns()
    stream.come(chunk(b"a"))
    other.come(chunk(b"b"))
    stream.response.abort()
    await turns()
    assert (stream.followed, other.followed) == ([], [b"b"])


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_a_stream_that_cannot_be_read_harms_no_other(error: type[BaseException]) -> None:
    class Defective:
        """A reader that cannot read."""

        def __init__(self) -> None:
            self.wire = Wire()
            self.transport: asyncio.Transport | None = self.wire

        def receive(self, data: bytes) -> None:
            raise error

    broken, fine, wire = Defective(), Stream(), Wire()
    (transport,) = collected(wire)
    await turns()
    this_round = round_of(asyncio.get_running_loop())
    this_round.begin()
    this_round.reads.append((broken, chunk(b"a")))
    fine.come(chunk(b"b"))
    transport.write(b"c")
    with complaints() as found:
        await turns()
    assert (fine.followed, wire.sent) == ([b"b"], b"c")
    assert broken.wire.closing
    assert found == [error]
    transport.write(b"d")
    await turns()
    assert wire.sent == b"cd"


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400), st.integers(0, 3)), max_size=40))
async def test_each_stream_passes_on_what_has_come_in_order(steps: list[tuple[int, int, int]]) -> None:
    """Whole chunks and cut ones, several in a round."""
    streams = [Stream(), Stream(), Stream()]
    expected = [b"", b"", b""]
    found = [b"", b"", b""]

    def collect() -> None:
        for number, stream in enumerate(streams):
            found[number] += b"".join(stream.followed)
            stream.followed.clear()

    for number, (which, size, pause) in enumerate(steps):
        content = bytes([number % 256]) * size
        data = chunk(content)
        at = size if pause == 1 else len(data)
        expected[which] += content
        streams[which].come(data[:at])
        if pause >= 2:
            await turns(pause)
            collect()
        if data[at:]:
            streams[which].come(data[at:])
            await turns()
            collect()
    await turns()
    collect()
    assert found == expected
