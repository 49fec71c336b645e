"""Collects the small parts of one round of the event loop. What has come of streams is passed on when the round's reads
are over, one stream after the other, and what is written is sent behind that.

A write to a socket wakes its reader. Written one by one between the reads of a round, small parts reach a reader that
has gone to sleep again behind each of them, and waking it costs more than the write. And the code that follows a stream
costs less when it runs several times in a row (docs/performance.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

AT_ONCE = 64 * 1024  # bytes that are not kept for the end of the round: a transport pauses its protocol above so many
PART = 16 * 1024  # bytes of a read that is collected: of larger ones many may come in one round
SINGLE = 8  # rounds in a row with one transport, after which parts are not collected
UNCOLLECTED = 16  # parts that are not collected then, until a round shows again whether there are more


class Reader(Protocol):
    """A connection in the middle of a stream."""

    transport: asyncio.Transport | None

    def receive(self, data: bytes) -> None:
        """Pass on what has come."""


class Round:
    """What was read and written in the present round of one event loop. `at_once`: so many further parts are not
    collected, because each of the latest rounds had only one: waiting for more would cost a round."""

    __slots__ = ("_is_begun", "_single", "at_once", "reads", "writers")

    def __init__(self) -> None:
        self._is_begun = False  # its end is due
        self._single = 0  # rounds in a row with one transport
        self.reads: list[tuple[Reader, bytes]] = []
        self.writers: list[CollectedTransport] = []
        self.at_once = 0

    def begin(self) -> None:
        """The first part of a round is kept: there is something to do when its reads are over."""
        if not self._is_begun:
            self._is_begun = True
            asyncio.get_running_loop().call_soon(self._end)

    def pass_reads(self) -> None:
        """Pass on what has come."""
        reads, self.reads = self.reads, []
        for reader, data in reads:
            try:
                reader.receive(data)
            except (Exception, asyncio.CancelledError) as error:  # it is that connection's alone
                _fail(reader.transport, "what has come could not be read", error)

    def _end(self) -> None:
        if self.reads:
            self.pass_reads()
        self._is_begun = False
        writers, self.writers = self.writers, []
        self._single = self._single + 1 if len(writers) == 1 else 0
        if self._single >= SINGLE:
            self.at_once = UNCOLLECTED
        for writer in writers:
            kept, writer.kept = writer.kept, b""
            try:
                if kept and not writer.wire.is_closing():
                    writer.wire.write(kept)
            except Exception as error:
                _fail(writer, "a part could not be written", error)


def _fail(transport: asyncio.Transport | None, what: str, error: BaseException) -> None:
    if transport is not None:
        transport.abort()
    context = {"message": f"{what}: its connection is aborted", "exception": error, "transport": transport}
    asyncio.get_running_loop().call_exception_handler(context)


_rounds: WeakKeyDictionary[asyncio.AbstractEventLoop, Round] = WeakKeyDictionary()


def round_of(loop: asyncio.AbstractEventLoop) -> Round:
    found = _rounds.get(loop)
    if found is None:
        found = _rounds[loop] = Round()
    return found


class CollectedTransport(asyncio.Transport):
    """A transport that keeps small parts until the end of the round, before they go to the `wire`. Everything else is
    done at once, in order."""

    __slots__ = ("_round", "kept", "wire")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.wire = transport
        self._round = round_of(loop)
        self.kept: bytes = b""

    def write(self, data: Any) -> None:
        kept = self.kept
        if len(kept) + len(data) > AT_ONCE:
            self.send()
            self.wire.write(data)
        elif kept:
            self.kept = kept + data
        elif data and self._round.at_once:
            self._round.at_once -= 1
            self.wire.write(data)
        elif data:
            self.kept = data if type(data) is bytes else bytes(data)
            if not self._round.writers:
                self._round.begin()
            self._round.writers.append(self)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.send()
        self.wire.writelines(list_of_data)

    def send(self) -> None:
        """Write what is kept now."""
        kept, self.kept = self.kept, b""
        if kept and not self.wire.is_closing():
            self.wire.write(kept)

    def write_eof(self) -> None:
        self.send()
        self.wire.write_eof()

    def can_write_eof(self) -> bool:
        return self.wire.can_write_eof()

    def close(self) -> None:
        self.send()
        self.wire.close()

    def abort(self) -> None:
        self.kept = b""
        self.wire.abort()

    def is_closing(self) -> bool:
        return self.wire.is_closing()

    def get_write_buffer_size(self) -> int:
        return len(self.kept) + self.wire.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.wire.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self.wire.pause_reading()

    def resume_reading(self) -> None:
        self.wire.resume_reading()
