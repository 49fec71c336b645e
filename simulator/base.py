"""The base of every simulated backend: its port, its faults, a record of its requests, and waiting for events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from simulator.control import control
from simulator.engine import Engine
from simulator.faults import Fault, Faults
from simulator.memory import Node, Share, refusal
from simulator.server import ClientGone, Exchange, SimServer

_KEPT = 2000  # records at most; a load test must not fill the memory
_NOT_INITIALIZED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
Ending = Literal["abort", "error", "silent"]  # what SIGTERM does to requests in flight


class Sim:
    """A simulated backend. Subclasses give `route` and own `engines`.

    `requests` are the POSTs in order (the last 2000), `seen` counts every path, probes included; `aborted` counts POSTs
    whose client left early, `inflight` POSTs under way. `/_sim` itself is in none of them.

    `shares`: what its process takes of each node. `resident`: the process is there and holds them, also while it ends.
    `exit_code`, `output`: of the process that has ended; a start that finds too little memory ends with 1.
    """

    def __init__(self, name: str, *, cold_start: float = 0.0, speedup: float = 1.0) -> None:
        self.name = name
        self.cold_start = cold_start  # simulated seconds until the port opens
        self.speedup = speedup  # simulated seconds per real second
        self.faults = Faults()
        self.requests: list[Record] = []
        self.seen: Counter[str] = Counter()
        self.aborted = 0
        self.inflight = 0
        self.alive = False
        self.shares: Sequence[Share] = ()
        self.resident = False
        self.exit_code: int | None = None
        self.output = ""
        self.started_at = time.time()
        self.server: SimServer | None = None
        self._waiters: set[asyncio.Event] = set()
        self._loader: asyncio.Task[None] | None = None

    # --- for subclasses ---

    def engines(self) -> list[Engine]:
        raise NotImplementedError

    async def route(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Further facts for `GET /_sim`."""
        return {}

    def restarted(self) -> None:
        """The process was restarted: drop its state."""

    def held_on(self, node: Node) -> int:
        """Bytes of the node that the process holds now."""
        return sum(share.holds for share in self.shares if share.node is node) if self.resident else 0

    def changed(self) -> None:
        """Some state has changed: wake the callers of `wait_for`."""
        for event in self._waiters:
            event.set()

    # --- running ---

    @contextlib.asynccontextmanager
    async def serve(self, port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[str]:
        """Serve in this event loop; gives the URL. With a cold start the port refuses first."""
        await self.start(port, host)
        assert self.server is not None
        try:
            yield self.server.url
        finally:
            await self.stop()

    async def start(self, port: int = 0, host: str = "127.0.0.1", running: bool = True) -> None:
        """Bind the port and come up (after `cold_start`), or with `running=False` only when revived.

        Raises OSError when the port is taken."""
        self.server = SimServer(self, host, port)
        self.server.reserve()
        if running:
            await self.revive()

    async def stop(self) -> None:
        await self._reset_connections()
        self._ended()
        self.resident = False
        for engine in self.engines():
            engine.abort_all()
        if self.server is not None:
            await self.server.close()

    @property
    def url(self) -> str:
        assert self.server is not None, "not started"
        return self.server.url

    async def kill(self) -> None:
        """kill -9: every connection reset, the port refuses, the memory free, until `revive`."""
        self._ended(exit_code=137)
        self.resident = False
        if self.server is not None:
            await self.server.kill()
        for engine in self.engines():
            engine.abort_all()
        self.changed()

    async def revive(self, cold_start: float | None = None) -> None:
        """Start the process again: counters at zero, the port open after the cold start (simulated seconds). Where its
        nodes have too little memory free it is not `alive`, and `output` says why."""
        await self._reset_connections()
        self.resident = False
        if (why := refusal(self.shares)) is not None:
            await self._die(why)
            return
        for engine in self.engines():
            engine.abort_all()
            engine.resume()
        self.started_at = time.time()
        self.restarted()
        self._ended()
        self.alive = self.resident = True
        self.exit_code, self.output = None, ""
        assert self.server is not None, "not started"
        delay = (self.cold_start if cold_start is None else cold_start) / self.speedup
        if delay > 0:
            self._open_after(delay)
        elif not self.faults.has("refuse"):
            self.server.open()
            await self.server.opened()
        self.changed()

    async def terminate(self, grace: float = 5.0, how: Ending = "abort") -> None:
        """SIGTERM: the port refuses, and requests in flight end in one of three ways (in vLLM a race decides which).

        `abort`: with finish_reason abort. `error`: streams with an error event, whole answers with a 500. `silent`:
        not at all; the connections stay open without another byte until `kill`, `revive` or `stop`. The other two reset
        after `grace` seconds what has not ended. Raises ValueError for another `how`."""
        if how not in get_args(Ending):
            raise ValueError(f"unknown ending '{how}'; known: {', '.join(get_args(Ending))}")
        self._ended(exit_code=0)
        assert self.server is not None, "not started"
        await self.server.refuse()
        for engine in self.engines():
            {"abort": engine.abort_all, "error": engine.die, "silent": engine.hang}[how]()
        self.changed()
        if how == "silent":
            return
        with contextlib.suppress(TimeoutError):
            await self.wait_for(lambda: self.inflight == 0, grace)
        if self.alive:  # revived meanwhile
            return
        self.resident = False
        await self.server.kill()
        self.changed()

    async def _die(self, output: str) -> None:
        """The process ends by itself, with its last words."""
        self.exit_code, self.output = 1, output
        self.alive = False
        await self.kill()

    def _ended(self, exit_code: int | None = None) -> None:
        """The process serves no more; what it was loading is given up."""
        if self.alive:
            self.alive, self.exit_code = False, exit_code
        if self._loader is not None:
            self._loader.cancel()
            self._loader = None

    async def _reset_connections(self) -> None:
        """Reset the connections of a process that has ended, before its engine releases hanging requests."""
        if not self.alive and self.server is not None:
            await self.server.kill()

    @property
    def listening(self) -> bool:
        """The port is open."""
        return self.server is not None and self.server.listening

    @property
    def loading(self) -> bool:
        return self._loader is not None

    def _open_after(self, delay: float) -> None:
        """Open the port after `delay` seconds."""
        if self._loader is not None:
            self._loader.cancel()
        self._loader = asyncio.get_running_loop().create_task(self._open_later(delay))

    async def _open_later(self, delay: float) -> None:
        await asyncio.sleep(delay)
        self._loader = None
        if self.faults.has("die_loading"):
            await self._die(_NOT_INITIALIZED)
        elif self.alive and self.server is not None and not self.faults.has("refuse"):
            self.server.open()
            await self.server.opened()
        self.changed()

    # --- faults ---

    def fault(self, kind: str, **options: Any) -> Fault:
        """Switch a fault on: `sim.fault("die_mid", after=3, count=1)`. Kinds: faults.KINDS, options: faults.Fault.

        Raises ValueError for an unknown kind, TypeError for an unknown option."""
        fault = Fault(kind, **options)
        self.faults.add(fault)
        if kind in ("refuse", "loading") and self.server is not None:
            self.server.refuse_now()
            if kind == "loading":
                self.faults.clear("loading")
                self._open_after((self.cold_start if fault.delay is None else fault.delay) / self.speedup)
        if kind == "hang_engine":
            for engine in self.engines():
                engine.hang()
        self.changed()
        return fault

    def clear(self, kind: str | None = None) -> None:
        """Switch faults off (of one kind, or all). Hanging requests go on; a refusing port opens."""
        self.faults.clear(kind)
        if self.alive and not self.loading and self.server is not None and not self.faults.has("refuse"):
            self.server.open()
        if kind is None or kind.startswith("hang"):
            for engine in self.engines():
                engine.resume()
        self.changed()

    def sleep(self, level: int = 1) -> None:
        """Put its engine to sleep. Raises ValueError where it cannot sleep."""
        raise ValueError(f"level {level}: only a simulated vLLM in development mode can")

    def wake_up(self) -> None:
        """End the sleep of its engine."""

    # --- waiting ---

    async def wait_for(self, condition: Callable[[], Any], timeout: float = 5.0) -> None:
        """Wait until `condition()` is true; it is evaluated at every change. Raises TimeoutError with the state."""
        event = asyncio.Event()
        self._waiters.add(event)
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    event.clear()
                    await event.wait()
        except TimeoutError:
            raise TimeoutError(f"'{self.name}' after {timeout} s: {self.state()}") from None
        finally:
            self._waiters.discard(event)

    async def wait_aborted(self, count: int = 1, timeout: float = 5.0) -> None:
        await self.wait_for(lambda: self.aborted >= count, timeout)

    async def wait_inflight(self, count: int, timeout: float = 5.0) -> None:
        await self.wait_for(lambda: self.inflight == count, timeout)

    def state(self) -> dict[str, Any]:
        """What `GET /_sim` shows."""
        last = self.requests[-1] if self.requests else None
        return {
            "name": self.name,
            "url": self.server.url if self.server else None,
            "alive": self.alive,
            "listening": self.listening,
            "loading": self.loading,
            "exit_code": self.exit_code,
            "output": self.output,
            "seen": dict(self.seen),
            "requests": len(self.requests),
            "inflight": self.inflight,
            "running": sum(len(e.running) for e in self.engines()),
            "waiting": sum(len(e.waiting) for e in self.engines()),
            "aborted": self.aborted,
            "faults": [{"kind": f.kind, "count": f.count, "after": f.after} for f in self.faults.active],
            "last": last and {"path": last.path, "headers": last.headers, "body": last.body.decode(errors="replace")},
            **self.describe(),
        }

    # --- serving ---

    async def handle(self, exchange: Exchange) -> None:
        if exchange.path == "/_sim" or exchange.path.startswith("/_sim/"):
            await control(exchange, {self.name: self}, exchange.path.removeprefix("/_sim"), self)
            return
        self.seen[exchange.path] += 1
        if exchange.method != "POST":
            await self._answer(exchange)
            return
        record = Record(exchange.method, exchange.path, exchange.headers)
        self.requests.append(record)
        del self.requests[:-_KEPT]
        self.inflight += 1
        exchange.on_lost.append(lambda: self._client_left(exchange, record))
        self.changed()
        try:
            record.body = await exchange.read_body()
            self.changed()
            await self._answer(exchange, record)
        finally:
            record.status, record.done = exchange.status, True
            self.inflight -= 1
            self.changed()

    def _client_left(self, exchange: Exchange, record: Record) -> None:
        if not exchange.finished and not record.done:
            record.aborted = True
            self.aborted += 1
            self.changed()

    async def _answer(self, exchange: Exchange, record: Record | None = None) -> None:
        faults = self.faults_for(exchange.path)
        if record is not None:
            record.faults = tuple(faults)
        if slow := faults.get("slow"):
            await asyncio.sleep((slow.delay or 1.0) / self.speedup)
        if die := faults.get("die_before"):
            await exchange.cut(die.reset)
        if "hang_health" in faults:
            await self._hang(exchange, "hang_health")
        if status := faults.get("status"):
            code, content_type, body, extra = status.answer()
            raw = body.encode() if isinstance(body, str) else json.dumps(body, separators=(",", ":")).encode()
            await exchange.send(code, raw, content_type, extra)
            return
        await self.route(exchange, faults)

    def faults_for(self, path: str) -> dict[str, Fault]:
        """The faults that hit this request; each is used up once."""
        return self.faults.for_request(path)

    async def _hang(self, exchange: Exchange, kind: str) -> None:
        """Send nothing until the fault is cleared or the client leaves."""
        exchange.on_lost.append(self.changed)
        while self.faults.has(kind) and not exchange.gone:
            with contextlib.suppress(TimeoutError):
                await self.wait_for(lambda: exchange.gone or not self.faults.has(kind), 3600)
        if exchange.gone:
            raise ClientGone


@dataclass(slots=True)
class Record:
    """One request as it arrived, and its outcome."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes = b""
    status: int | None = None
    aborted: bool = False  # the client left before the answer was whole
    done: bool = False
    faults: tuple[str, ...] = ()
    at: float = field(default_factory=time.time)

    @property
    def json(self) -> Any:
        """The decoded body; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None
