"""What one gateway process is made of."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from gateway.config.snapshot import Backend, Snapshot
from gateway.fleet import BackendState, Fleet
from gateway.health.prober import Prober
from gateway.health.state import Transition
from gateway.observe.metrics import Metrics
from gateway.upstream.client import Client, ResetFailure
from gateway.upstream.connect import open_client
from gateway.upstream.engines import ENGINES
from gateway.watch import Pulse, Stopping

log = logging.getLogger("gateway")


class Gateway:
    """The snapshot in force, the fleet, the requests under way; handed down, never global."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.metrics = Metrics()
        self.fleet = Fleet(open_backend, self._transition, self._gone)
        self.prober = Prober(self.fleet)
        self.pulse = Pulse()
        self.active: set[Any] = set()  # the requests under way (relay.Relay, which knows us: not the other way round)
        self.started = time.time()
        self.stopping = False
        self._turns: dict[str, int] = {}
        self._preparing: list[asyncio.Task[None]] = []
        self._stop_timer: asyncio.TimerHandle | None = None
        self.metrics.watch(self.fleet)

    async def open(self) -> None:
        await self.fleet.apply(self.snapshot)
        used = {backend.engine for backend in self.snapshot.backends.values()} & ENGINES.keys()
        # Not waited for: litellm's takes seconds, and its backends are mostly the last step of a chain.
        self._preparing = [asyncio.create_task(ENGINES[name].prepare()) for name in used]
        await self.prober.start()

    async def close(self) -> None:
        for task in self._preparing:
            task.cancel()
        await self.prober.close()
        await self.fleet.close()

    def next_turn(self, alias: str) -> int:
        """How many requests of this alias came before: what round robin turns on."""
        turn = self._turns.get(alias, 0)
        self._turns[alias] = turn + 1
        return turn

    def begin_stop(self) -> None:
        """Not ready any more; what runs has `server.shutdown` to end by itself."""
        if self.stopping:
            return
        self.stopping = True
        loop = asyncio.get_running_loop()
        self._stop_timer = loop.call_later(self.snapshot.server.shutdown, self.interrupt_all)

    def interrupt_all(self) -> None:
        for relay in list(self.active):
            relay.watch.interrupt(Stopping())

    def _gone(self, state: BackendState) -> None:
        """Its port is closed. A stopping vLLM may leave its sockets open and say nothing more for minutes: what has
        heard nothing since is ended here, and goes on elsewhere where it can."""
        for relay in list(self.active):
            watch = relay.watch
            if relay.trying is state and watch.heard < state.refused_since and not watch.writing:
                watch.interrupt(ResetFailure("silent, and its port is closed"))

    def _transition(self, transition: Transition) -> None:
        level = logging.INFO if transition.after in ("ready", "parked") else logging.WARNING
        log.log(level, "%s: %s -> %s: %s", *_words(transition))
        self.metrics.transitions.inc(transition.backend, transition.after.value)


def _words(transition: Transition) -> tuple[str, str, str, str]:
    return transition.backend, transition.before.value, transition.after.value, transition.reason


def open_backend(backend: Backend) -> Client | None:
    """The connections of one backend; None for an engine that brings its own (litellm)."""
    if backend.url is None:
        return None
    return open_client(backend.origin, connect_timeout=backend.timeouts.connect)
