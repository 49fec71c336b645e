"""The fleet: one `BackendState` per backend of the snapshot, and one per removed backend that still has requests.

The fleet outlives snapshots: a backend with the same name, engine and url is the same running engine and keeps its
state, with its slots, connections and learned facts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from gateway.config.machines import Identity
from gateway.config.snapshot import Backend, Snapshot
from gateway.domain.backend import BackendState, Observers
from gateway.domain.engine_traits import canaried
from gateway.domain.health_machine import Health
from gateway.domain.upstream import UpstreamClient
from gateway.supervision import Failures

log = logging.getLogger("gateway.fleet")

STILL_USED = 0.1  # seconds between two checks whether all requests on a removed backend have ended

OpenClient = Callable[[Backend], UpstreamClient | None]


class Fleet:
    """All backends of the current snapshot. `states` is replaced and never changed in place: a request may keep the
    mapping it began with."""

    def __init__(self, open_client: OpenClient, failures: Failures | None = None) -> None:
        self.observers = Observers()
        self.sharers = 1  # initial `SharedView.sharers` of new backends
        self._failures = failures or Failures()
        self.states: Mapping[str, BackendState] = {}
        self.retired: dict[Identity, BackendState] = {}  # removed from routes.yaml, and not closed yet
        self._drained: set[Identity] = set()  # drained by an operator when they were removed
        self._fresh: dict[Identity, BackendState] = {}
        self._closing: dict[Identity, asyncio.Task[None]] = {}  # of what is in `retired`
        self._tasks: set[asyncio.Task[None]] = set()  # closing tasks that have not finished, cancelled ones included
        self._open_client = open_client

    def __getitem__(self, name: str) -> BackendState:
        return self.states[name]

    def prepare(self, snapshot: Snapshot) -> list[BackendState]:
        """Make the records of the backends that are new in this snapshot: they can be checked before `apply`."""
        known = {state.backend.identity for state in self.states.values()}
        self._fresh = {
            backend.identity: self._new(backend)
            for backend in snapshot.backends.values()
            if backend.identity not in known and backend.identity not in self.retired
        }
        return list(self._fresh.values())

    def apply(self, snapshot: Snapshot) -> list[BackendState]:
        """Switch the fleet to `snapshot`. Returns the removed backends, which are closed when their requests have
        ended. A backend with the same identity is kept; one that was removed earlier and still has requests is restored
        with them."""
        before = {state.backend.identity: state for state in self.states.values()}
        self.states = {backend.name: self._state_of(backend, before) for backend in snapshot.backends.values()}
        self._fresh = {}
        self._join_engines()
        # First the backends that enter the mode in force: what waits for one that leaves it then finds them.
        engines = [state for state in self.states.values() if state.host is None]
        for state in sorted(engines, key=lambda state: state.backend.parked is not None):
            state.evidence.follow_mode(state.backend.parked)
            if state.backend.identity in self._drained:
                self._drain_again(state)
        for state in before.values():
            self._retire(state)
        return list(before.values())

    def _join_engines(self) -> None:
        """Adapters share what belongs to the engine of their host."""
        together: dict[str, list[BackendState]] = {}
        for state in self.states.values():
            together.setdefault(state.backend.on or state.name, []).append(state)
        for state in self.states.values():
            members = together[state.backend.on or state.name]
            state.siblings = tuple(other for other in members if other is not state)
            if state.backend.on is not None:
                state.join(self.states[state.backend.on])

    def _drain_again(self, state: BackendState) -> None:
        """Drain a backend again that was drained when it was removed and is now back in routes.yaml. Other gateways are
        not notified: what they know of its drain is at least as recent."""
        self._drained.discard(state.backend.identity)
        state.evidence.drain(announce=False)

    def _state_of(self, backend: Backend, before: dict[Identity, BackendState]) -> BackendState:
        identity = backend.identity
        if identity in before:
            state = before.pop(identity)
        elif identity in self.retired:
            state = self.retired.pop(identity)
            self._closing.pop(identity).cancel()
            state.health = _new_health(backend)  # its health was not checked while it was removed
        else:
            return self._fresh.pop(identity, None) or self._new(backend)
        state.define(backend)
        return state

    def _new(self, backend: Backend) -> BackendState:
        state = BackendState(backend, self._open_client(backend), _new_health(backend), self.observers)
        state.shared.sharers = self.sharers
        return state

    def _retire(self, state: BackendState) -> None:
        identity = state.backend.identity
        state.siblings = ()
        if state.host is not None:  # the engine stays as it is
            state.health = _new_health(state.backend)
        if state.health.drained:
            self._drained.add(identity)
        state.health.remove(time.monotonic())
        self.retired[identity] = state
        task = self._closing[identity] = self._failures.once("fleet", self._close_at_the_end(state))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close_at_the_end(self, state: BackendState) -> None:
        while state.inflight:
            await asyncio.sleep(STILL_USED)
        identity = state.backend.identity
        del self.retired[identity], self._closing[identity]
        log.info("%s has ended what ran there: closed", state.name)
        await close_clients([state])
        for observer in self.observers.closed:
            observer(state)

    async def close(self) -> None:
        for task in self._closing.values():
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close_clients([*self.states.values(), *self.retired.values(), *self._fresh.values()])


def _new_health(backend: Backend) -> Health:
    """The health of a backend that was not checked yet: unknown, or parked where the mode in force says so."""
    now = time.monotonic()
    health = Health(backend.name, backend.health, backend.run != "always", since=now, born=now)
    health.on_request = backend.run == "on_request"
    health.canaried = canaried(backend)
    if backend.parked is not None:
        health.park(backend.parked, now)
    return health


async def close_clients(states: Iterable[BackendState]) -> None:
    for state in states:
        if state.load is not None:
            state.load.cancel()
        if state.client is not None:
            await state.client.close()
