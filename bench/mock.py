"""An upstream that costs next to nothing and speaks as vLLM does: `python -m bench.mock --port P --port Q`.

A chat request says in `bench`, wherever that stands in it, what it wants (`"EVENTS/INTERVAL_MS/PACE"`); the rest of its
body is not parsed. The pace of a stream is one of
burst   everything in one write
each    every event in a write of its own, without a pause
steps   one event per interval, all streams at the same moment: an engine that decodes its batch step by step
alone   one event per interval, the streams evenly spread, so that every event travels alone
turn    as steps, of an agent's turn: thoughts, then one call in pieces
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import threading
import time
from functools import lru_cache
from typing import cast

import uvloop

from bench import replies

TICK = 0.0005  # seconds; 20 streams of 100 events/s then have a tick each, so that every event travels alone
BENCH = re.compile(rb'"bench"\s*:\s*"(\d+)/(\d+)/(\w+)"')
LENGTH = re.compile(rb"content-length: *(\d+)")
STREAM = re.compile(rb'"stream"\s*:\s*true')
USAGE = re.compile(rb'"include_usage"\s*:\s*true')


def _field(request: bytes, key: bytes, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """The last occurrence of a key, with its value; looked for from the end, where a long body has such fields."""
    at = request.rfind(key)
    return pattern.match(request, at) if at >= 0 else None


class Pacer:
    """A calendar of ticks. A spread stream gets a tick of its own where one is free, the others share theirs.

    The ticks come from a thread, because the event loop's own timers are whole milliseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[int, list[Upstream]] = {}
        self._now = 0
        self._wake = threading.Event()
        threading.Thread(target=self._run, name="pacer", daemon=True).start()

    def add(self, stream: Upstream, interval_ms: int, *, spread: bool) -> None:
        """The stream's `step` is called every `interval_ms` until it returns False."""
        stream.ticks = period = max(1, round(interval_ms / 1000 / TICK))
        first = self._now + 1
        shared = first + -first % period
        free = (tick for tick in range(first, first + period) if not self._taken(tick, period))
        self._due.setdefault(next(free, first) if spread else shared, []).append(stream)
        self._wake.set()

    def _taken(self, tick: int, period: int) -> bool:
        return tick in self._due or tick + period in self._due

    def _tick(self) -> None:
        self._now += 1
        for stream in self._due.pop(self._now, ()):
            if stream.step():
                self._due.setdefault(self._now + stream.ticks, []).append(stream)
        if not self._due:
            self._wake.clear()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            self._wake.wait()
            due = max(due + TICK, time.monotonic() - 20 * TICK)  # a long pause is not made up for in one go
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                self._loop.call_soon_threadsafe(self._tick)
            except RuntimeError:  # the loop is closed: the process ends
                return


class Counters:
    """What `/metrics` tells."""

    def __init__(self) -> None:
        self.running = 0
        self.chats = 0
        self.events = 0


class Upstream(asyncio.Protocol):
    """One connection: the end of a request is found by its length, nothing else is looked at but a few marks."""

    def __init__(self, pacer: Pacer, counters: Counters) -> None:
        self.ticks = 1
        self._loop = asyncio.get_running_loop()
        self._pacer = pacer
        self._counters = counters
        self._received = bytearray()
        self._need = 0
        self._left = 0
        self._tail = b""
        self._turn = False
        self._open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False
        if self._left:
            self._counters.running -= 1
            self._left = 0

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= max(self._need, 1):
            end = self._received.find(b"\r\n\r\n") + 4
            if end == 3:
                return
            self._need = self._whole(end)
            if not 0 < self._need <= len(self._received):
                return
            request, self._received = bytes(self._received[: self._need]), self._received[self._need :]
            self._need = 0
            self._answer(request, end)

    def _whole(self, end: int) -> int:
        """Bytes of the request whose head ends at `end`; 0 while that cannot be told."""
        head = bytes(self._received[:end]).lower()
        length = LENGTH.search(head)
        if length:
            return end + int(length[1])
        if b"transfer-encoding: chunked" in head:
            last = self._received.find(b"\r\n0\r\n\r\n", end - 2)
            return last + 7 if last >= 0 else 0
        return end

    def _answer(self, request: bytes, end: int) -> None:
        if request.startswith(b"POST /v1/chat/completions "):
            self._chat(request, end)
            return
        words = request[: request.find(b"\r\n")].split(b" ")
        if len(words) < 3:  # a proxy that tries HTTP/2 here
            self._transport.close()
            return
        path = words[1].partition(b"?")[0]
        counters = self._counters
        if path == b"/metrics":
            reply = replies.metrics(counters.running, counters.chats, counters.events)
        else:
            known = {b"/health": replies.HEALTH, b"/v1/models": replies.MODELS, b"/version": replies.VERSION}
            known[b"/v1/traces"] = replies.HEALTH  # spans are thrown away
            reply = known.get(path, replies.NOT_FOUND)
        self._transport.write(reply)

    def _chat(self, request: bytes, end: int) -> None:
        self._counters.chats += 1
        asked = _field(request, b'"bench"', BENCH)
        if asked is None:
            self._transport.write(replies.canary(request[end:]))
        elif not _field(request, b'"stream"', STREAM):
            self._transport.write(replies.CHAT)
        else:
            usage = replies.USAGE if _field(request, b'"include_usage"', USAGE) else b""
            self._turn = asked[3] == b"turn"
            last = replies.LAST_TOOL if self._turn else replies.LAST
            self._tail = last + usage + replies.DONE + replies.END
            self._stream(int(asked[1]), int(asked[2]), asked[3])

    def _stream(self, events: int, interval_ms: int, pace: bytes) -> None:
        self._counters.events += events
        head = replies.STREAM_HEAD + replies.ROLE
        if pace == b"burst":
            self._transport.write(head + _burst(events - 1) + self._tail)
            return
        self._counters.running += 1
        self._transport.write(head)
        self._left = events
        if pace == b"each":
            self._loop.call_soon(self._next)
        else:
            self._pacer.add(self, interval_ms, spread=pace == b"alone")

    def _next(self) -> None:
        if self.step():
            self._loop.call_soon(self._next)

    def step(self) -> bool:
        """Send the next event; False when there are no more."""
        if not self._open:
            return False
        self._left -= 1
        if not self._left:
            event = self._tail
        elif self._turn:
            event = replies.TURN[-self._left]
        else:
            event = replies.DELTAS[(self._left - 1) % replies.DIFFERENT]
        self._transport.write(event)
        if not self._left:
            self._counters.running -= 1
        return self._left > 0


@lru_cache
def _burst(events: int) -> bytes:
    return b"".join([replies.DELTAS[number % replies.DIFFERENT] for number in range(events)])


async def serve(ports: list[int]) -> None:
    """Listen on every port until stdin ends, which is when the parent is gone; says `ready PORT...` on stdout."""
    loop = asyncio.get_running_loop()
    pacer, counters = Pacer(loop), Counters()
    servers = [await loop.create_server(lambda: Upstream(pacer, counters), "127.0.0.1", port) for port in ports]
    print("ready", *(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    gone = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(sys.stdin.fileno(), 4096) else gone.set())
    await gone.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="The mock upstream of the benchmark.")
    parser.add_argument("--port", type=int, action="append", required=True, help="0 = any; may be given twice")
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
