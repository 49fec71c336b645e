"""Restarts engines that hang, where routes.yaml says so (`recover`). Off by default.

An engine hangs when its heartbeat or its checks say so for `after`, while its port answers and every unit of it is
active. One that is gone (systemd starts it again), that loads, that is only slow, that a person has drained, or whose
node is not reached, is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gateway.apps.control.operations import Operations
from gateway.apps.control.switching import restart_steps
from gateway.apps.control.troubles import found_of
from gateway.apps.control.unit_commands import units_of
from gateway.apps.control.units import WORDS_ASKED, look
from gateway.config.snapshot import Recover
from gateway.domain.backend import BackendState
from gateway.domain.events import Event
from gateway.domain.health_state import State
from gateway.errors import GatewayError
from gateway.runtime.gateway import Gateway
from gateway.supervision import cancel

log = logging.getLogger("gateway.operations")

LOOK = 1.0  # seconds between two looks
HOUR = 3600.0
BACKOFF_MOST = 8  # times the backoff is doubled at most


@dataclass(slots=True)
class Hang:
    """One backend. `since`: monotonic, when it was first seen to hang; None = it does not. `restarts`: when it was
    restarted within the last hour, `until`: not again before that. `exhausted`: that no more is tried was told."""

    since: float | None = None
    restarts: deque[float] = field(default_factory=deque)
    until: float = 0.0
    exhausted: bool = False


def seems_hung(state: BackendState) -> bool:
    """Whether its health speaks of an engine that hangs: it has served, it is down (or on trial after a stall), and it
    does not refuse connections."""
    health = state.health
    if not health.ever_ready or health.gone or health.drained or health.set_aside or health.summoned:
        return False
    if health.stalls > 0:
        return health.state in (State.DOWN, State.WARMING)
    return health.state is State.DOWN and health.oks == 0


def why_not_now(hang: Hang, recover: Recover, now: float) -> str:
    """Why a backend that hangs is not restarted now; "" = it is."""
    if hang.since is None or now - hang.since < recover.after:
        return "not for long enough"
    while hang.restarts and now - hang.restarts[0] >= HOUR:
        hang.restarts.popleft()
    if len(hang.restarts) >= recover.max:
        return f"restarted {len(hang.restarts)} times within an hour (recover.max)"
    return "waits for its backoff" if now < hang.until else ""


class Recovery:
    """Looks at every backend with `recover`, and restarts one at a time. `told`: backend -> the last restart, in words,
    for alerts."""

    def __init__(self, gateway: Gateway, operations: Operations) -> None:
        self.look_every = LOOK
        self.told: dict[str, str] = {}
        self._gateway = gateway
        self._operations = operations
        self._hangs: dict[str, Hang] = {}
        self._watching: asyncio.Task[Any] | None = None

    async def open(self) -> None:
        self._watching = self._gateway.metrics.failures.task("recovery", self._watch)

    async def close(self) -> None:
        await cancel(self._watching)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.look_every)
            for state in list(self._gateway.fleet.states.values()):
                if state.backend.recover is not None:
                    await self._look(state, state.backend.recover)

    async def _look(self, state: BackendState, recover: Recover) -> None:
        hang = self._hangs.setdefault(state.name, Hang())
        now = time.monotonic()
        if not seems_hung(state):
            hang.since = None
            if state.health.well:
                self.told.pop(state.name, None)
                hang.exhausted = False
            return
        moved = max(state.last_event, state.progress.moved_at)  # what still decodes is only slow
        hang.since = max(hang.since or now, moved)
        why = why_not_now(hang, recover, now)
        if "recover.max" in why and not hang.exhausted:
            hang.exhausted = True
            self._tell(state.name, f"hangs, and is left to people: {why}", "failed")
        if not why:
            await self._restart(state, recover, hang)

    async def _restart(self, state: BackendState, recover: Recover, hang: Hang) -> None:
        units = units_of(state.backend, self._gateway.snapshot.nodes)
        found = await look(units, words=WORDS_ASKED)
        # A unit that starts is `activating`, until the engine answers.
        seen = [one for one in found.values() if one is not None and one.active == "active"]
        if not units or len(seen) < len(units) or not seems_hung(state):
            return  # it loads, is down, or its node is not reached
        now, said = time.monotonic(), found_of(state.name, seen)["words"]
        words = f"; its last words: {said[-1]}" if said else ""
        why = f"hung for {now - (hang.since or now):.0f} s ({state.health.reason}){words}"
        snapshot = self._gateway.snapshot
        profile = self._operations.profiles.get(state.name, "")
        steps = restart_steps(snapshot, state.name, {}, profile, notes=[why])
        try:
            await self._operations.begin_unasked("restart", state.name, steps, "recovery")
        except GatewayError:  # another operation runs; it is looked at again
            return
        hang.restarts.append(now)
        hang.until = now + recover.backoff * 2.0 ** min(len(hang.restarts) - 1, BACKOFF_MOST)
        hang.since = None
        self._tell(state.name, f"{why}: restarted, {len(hang.restarts)} of {recover.max} within an hour", "running")

    def _tell(self, name: str, text: str, state: str) -> None:
        """The log and alerts with the engine's words, everybody else without."""
        self.told[name] = f"{name} {text}"
        log.warning("%s %s", name, text)
        self._gateway.emit(Event(time.time(), "operation", name, f"recovery of {name}", after=state))
