"""The load, in a process of its own: `python -m bench.load` reads one job as JSON on stdin, answers JSON on stdout.

Every answer is checked, so that a proxy that drops or invents something is not called fast.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import httptools
import uvloop

from bench import processes
from bench.scenarios import BY_NAME, Scenario, request

PATIENCE = 30.0  # seconds after the end of a window in which the last answers must have come
MAX_ERRORS = 20
EVENT = b"data: {"
DONE = b"data: [DONE]\n\n"
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
AROUND = 5  # events of a message besides its pieces: its start and end, and that of its one block, and why it ended


@dataclass(frozen=True)
class Job:
    """What to run against whom. `pids`: roots of the process trees whose CPU and memory are read."""

    scenario: str
    host: str
    port: int
    model: str
    seconds: float
    warm: float
    pids: list[int]
    connections: int = 0  # 0 = the scenario's


@dataclass
class Result:
    """One measured window. `cpu_ns` and `rss` are 0 without pids; latencies are milliseconds."""

    requests: int = 0
    events: int = 0
    seconds: float = 0.0
    cpu_ns: int = 0
    rss: int = 0
    latencies: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)


class Connection(asyncio.Protocol):
    """A kept connection with at most one request in flight. `on_answer` gets what was wrong, "" for a right answer."""

    def __init__(self, job: Job, scenario: Scenario) -> None:
        self.on_answer: Callable[[Connection, str], None] = lambda _connection, _error: None
        self.started = 0.0
        self.events = 0  # of the answer in flight
        self.payload = b""
        self.expected = 0
        self._job = job
        self._scenario = scenario
        self._message = scenario.asks_for_message(job.model)
        self._end = STOP if self._message else DONE
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._lost = asyncio.Event()
        self._lost.set()
        self._reconnecting = False
        self.busy = False
        self._carry = b""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._lost.clear()
        self._parser = httptools.HttpResponseParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()
        if not self._reconnecting:
            self._finish("connection closed before the answer was complete")

    def send(self) -> None:
        """Send the payload, on a new connection if the old one was closed."""
        self.busy = True
        self.started = time.perf_counter()
        self.events, self._carry, self._body = 0, b"", b""
        if self._transport is None or self._transport.is_closing():
            self._reconnecting = True
            self._again = asyncio.get_running_loop().create_task(self._reconnect())
        else:
            self._transport.write(self.payload)

    async def _reconnect(self) -> None:
        await self._lost.wait()  # one protocol object, so never two transports
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, self._job.host, self._job.port)
        except OSError as error:
            self._finish(f"connect: {error.strerror or error}")
            return
        finally:
            self._reconnecting = False
        if self._transport is None:
            self._finish("connection closed at once")
        else:
            self._transport.write(self.payload)

    def close(self) -> None:
        self.busy = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(f"not HTTP: {error}")
            self.close()

    def on_body(self, data: bytes) -> None:
        """From the parser. Marks may be cut anywhere, hence what is carried over from the piece before."""
        if not self._scenario.stream:
            self._body += data
            return
        joined = self._carry + data
        self.events += joined.count(EVENT)
        self._carry = joined[1 - len(EVENT) :]
        self._body = joined if len(joined) >= len(self._end) else (self._body + data)[-2 * len(self._end) :]

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        error = self._wrong(status)
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()
        self._finish(error)

    def _wrong(self, status: int) -> str:
        if status != 200:
            return f"status {status}: {self._body[:300].decode(errors='replace')}"
        if not self._scenario.stream:
            stop = b'"stop_reason":"end_turn"' if self._message else b'"finish_reason":"stop"'
            whole = self._body.endswith(b"}") and stop in self._body and b"is 204" in self._body
            return "" if whole else "the answer is not the upstream's"
        if not self._body.endswith(self._end):
            return "the stream ended without its last event"
        return "" if self.events == self.expected else f"{self.events} events instead of {self.expected}"

    def _finish(self, error: str) -> None:
        if self.busy:
            self.busy = False
            self.on_answer(self, error)


class Run:
    """One job: its connections and what came of them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.scenario = BY_NAME[job.scenario]
        self.result = Result()
        self._errors: Counter[str] = Counter()
        self._pids = processes.process_tree(job.pids)
        self._active = 0
        self._until = 0.0
        self._idle = asyncio.Event()
        self._finished_events = 0

    async def run(self) -> Result:
        """The whole job: warm up, then the measured window."""
        modes: dict[str, Callable[[], Awaitable[None]]] = {
            "closed": self._closed,
            "paced": self._paced,
            "hold": self._hold,
            "rate": self._rate,
        }
        self._open(self.job.connections or self.scenario.connections)
        await modes[self.scenario.mode]()
        for connection in self._connections:
            connection.on_answer = lambda _connection, _error: None
            connection.close()
        self.result.errors = dict(self._errors.most_common(5))
        return self.result

    def _open(self, count: int) -> None:
        events = self.scenario.events
        if self.scenario.mode == "paced":
            # Long enough for the window, and then they end, so that their end can be checked too.
            events = round((self.job.warm + self.job.seconds + 0.3) * 1000 / self.scenario.interval_ms)
        payload = request(self.scenario, f"{self.job.host}:{self.job.port}", self.job.model, events)
        self._connections = [Connection(self.job, self.scenario) for _ in range(count)]
        for connection in self._connections:
            connection.payload = payload
            connection.expected = events + (AROUND if self.scenario.asks_for_message(self.job.model) else 1)
            connection.on_answer = self._answered

    def _answered(self, connection: Connection, error: str) -> None:
        now = time.perf_counter()
        self._finished_events += connection.events
        if error:
            self._errors[error] += 1
        else:
            self.result.requests += 1
            self.result.latencies.append((now - connection.started) * 1000)
        if now < self._until and self._errors.total() < MAX_ERRORS:
            connection.send()
            return
        self._active -= 1
        if self._active == 0:
            self._idle.set()

    async def _drive(self, seconds: float) -> None:
        """Every connection sends until the time is over; returns when the last answer is there."""
        self._idle.clear()
        self._active = len(self._connections)
        self._until = time.perf_counter() + seconds
        for connection in self._connections:
            connection.send()
        await self._settle(seconds)

    async def _settle(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._idle.wait(), seconds + PATIENCE)
        except TimeoutError:
            self._errors["no answer"] += self._active

    async def _closed(self) -> None:
        await self._drive(self.job.warm)
        if self._errors:
            return
        self.result.requests, self._finished_events = 0, 0
        self.result.latencies.clear()
        start, cpu = time.perf_counter(), processes.cpu_ns(self._pids)
        await self._drive(self.job.seconds)
        self.result.cpu_ns = processes.cpu_ns(self._pids) - cpu
        self.result.seconds = time.perf_counter() - start
        self.result.events = self._finished_events

    async def _paced(self) -> None:
        self._active = len(self._connections)
        for connection in self._connections:
            connection.send()
        await asyncio.sleep(self.job.warm)
        start, cpu, events = time.perf_counter(), processes.cpu_ns(self._pids), self._events()
        await asyncio.sleep(self.job.seconds)
        self.result.cpu_ns = processes.cpu_ns(self._pids) - cpu
        self.result.events = self._events() - events
        self.result.seconds = time.perf_counter() - start
        await self._settle(2.0)

    def _events(self) -> int:
        return self._finished_events + sum(connection.events for connection in self._connections)

    async def _hold(self) -> None:
        """Open all streams, wait until each has had content, keep them, then read the memory."""
        self._active = len(self._connections)
        for connection in self._connections:
            connection.send()
            await asyncio.sleep(0.001)
        until = time.perf_counter() + PATIENCE
        while (silent := sum(connection.events < 2 for connection in self._connections)) and not self._errors:
            if time.perf_counter() > until:
                self._errors[f"{silent} of {len(self._connections)} streams said nothing"] += 1
            await asyncio.sleep(0.05)
        await asyncio.sleep(self.job.seconds)
        self.result.rss = processes.rss_bytes(self._pids)
        self.result.requests = len(self._connections)

    async def _rate(self) -> None:
        self._active = len(self._connections) + 1  # never idle before the window is over
        period = 1 / self.scenario.rate
        warm = max(self.scenario.rate // 4, len(self._connections))
        due = time.perf_counter()
        for i in range(warm + round(self.job.seconds * self.scenario.rate)):
            if i == warm:
                self.result.requests, self._finished_events = 0, 0
                self.result.latencies.clear()
            if self._errors.total() >= MAX_ERRORS:
                return
            connection = self._connections[i % len(self._connections)]
            if connection.busy:
                self._errors["slower than the rate"] += 1
            else:
                connection.send()
            due += period
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        self.result.seconds = self.job.seconds
        await asyncio.sleep(0.1)  # the last answers


def main() -> None:
    """Run the job on stdin; nothing is printed but the result."""
    job = Job(**json.loads(sys.stdin.read()))

    async def run() -> Result:
        return await Run(job).run()

    _answer(json.dumps(asdict(uvloop.run(run()))).encode())


def _answer(data: bytes) -> None:
    """All of it: a write to a pipe may take a part only, and `print` does not always go on with the rest."""
    os.set_blocking(1, True)
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
