"""Fallbacks of Ollama that are loaded ahead: when the first step of an alias falls, the first fallback request should
not be the one that waits for a model to load. On the node of what fell only where the exporter showed room for both
while that ran: it needs its memory to come back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Protocol

from gateway.config.snapshot import Alias, Backend, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import TRAITS
from gateway.domain.fleet import Fleet
from gateway.domain.health_state import SERVING, WELL, State
from gateway.health.exporter import Machine
from gateway.supervision import Failures

log = logging.getLogger("gateway.health")

LOOK = 0.5  # seconds between two looks at the aliases
KEEP = "10m"  # how long Ollama keeps what we have loaded
RENEW = 240.0  # seconds until it is told so again: a request sets its own, shorter time
RETRY = 30.0  # seconds after a load that did not work
LOADED = 1.5  # times its file's size is what a model takes with a window; no server says it before it is loaded
MARGIN = 1 << 30  # bytes that are left alone


class Loader(Protocol):
    async def size(self, state: BackendState) -> int | None: ...

    async def has_loaded(self, state: BackendState) -> bool: ...

    async def load(self, state: BackendState, keep_alive: str | int) -> bool: ...


class Standby:
    """`machines`: what the exporters of the nodes say. `ours`: the backends whose model was loaded because of us, and
    when Ollama was last told to keep it. `free`: bytes on the nodes of each backend when it was last well."""

    def __init__(
        self, fleet: Fleet, loader: Loader, machines: Mapping[str, Machine], failures: Failures | None = None
    ) -> None:
        self._fleet = fleet
        self._failures = failures or Failures()
        self._loader = loader
        self._machines = machines
        self._aliases: Mapping[str, Alias] = {}
        self._not_before: dict[str, float] = {}
        self.ours: dict[str, float] = {}
        self.free: dict[str, float] = {}

    def take(self, snapshot: Snapshot) -> None:
        self._aliases = snapshot.aliases

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self.look(time.monotonic())
            except Exception:
                self._failures.note("standby", "loading fallbacks ahead")

    async def look(self, now: float) -> None:
        states = self._fleet.states
        self._note_room()
        needed = wanted(self._aliases, states)
        for name, neighbours in needed.items():
            if now < self._not_before.get(name, 0.0):
                continue
            if name in self.ours or not neighbours or await self._has_room(states[name], neighbours):
                await self._keep(states[name], now)
            else:
                self._not_before[name] = now + RETRY
        for name in self.ours.keys() - needed.keys():
            state = states.get(name)
            if state is None or state.health.state not in SERVING:
                del self.ours[name]
            elif not state.under_way:
                del self.ours[name]
                log.info("%s is no longer needed: unloaded", name)
                await self._loader.load(state, 0)
        for name in self._not_before.keys() - needed.keys():
            del self._not_before[name]

    def _note_room(self) -> None:
        """How much is free beside each backend that is well."""
        for state in self._fleet.states.values():
            if state.health.state in WELL and (room := self._room(state)) is not None:
                self.free[state.name] = room
        for name in self.free.keys() - self._fleet.states.keys():
            del self.free[name]

    def _room(self, state: BackendState) -> float | None:
        """Free bytes of the fullest of its nodes; None where one does not say."""
        frees = [_free(self._machines.get(node)) for node in state.backend.nodes]
        known = [free for free in frees if free is not None]
        return min(known) if known and len(known) == len(frees) else None

    async def _has_room(self, state: BackendState, neighbours: frozenset[str]) -> bool:
        """Is there room for its model now, and was there beside each of those that have to come back?"""
        rooms = [self._room(state), *(self.free.get(name) for name in neighbours)]
        known = [room for room in rooms if room is not None]
        if len(known) < len(rooms):
            return False
        size = await self._loader.size(state)
        return size is not None and min(known) >= size * LOADED + MARGIN

    async def _keep(self, state: BackendState, now: float) -> None:
        """What somebody else has loaded is not ours to unload, nor to keep."""
        if state.name not in self.ours and await self._loader.has_loaded(state):
            self._not_before[state.name] = now + RENEW
            return
        if state.name not in self.ours:
            log.info("%s is loaded ahead, as a fallback", state.name)
        if await self._loader.load(state, KEEP):
            self.ours[state.name] = now
            self._not_before[state.name] = now + RENEW
        else:
            self._not_before[state.name] = now + RETRY


def wanted(aliases: Mapping[str, Alias], states: Mapping[str, BackendState]) -> dict[str, frozenset[str]]:
    """The Ollama backends that serve an alias now because its first step has fallen -> the fallen backends that share a
    machine with them."""
    found: dict[str, frozenset[str]] = {}
    for alias in aliases.values():
        if not alias.steps or not all(_fallen(states[name]) for name in alias.steps[0]):
            continue
        for step in alias.steps[1:]:
            usable = [states[name] for name in step if _local_and_well(states[name])]
            if usable:
                for state in usable:
                    if TRAITS[state.backend.engine].loads_on_demand:
                        beside = (n for n in alias.steps[0] if places(states[n].backend) & places(state.backend))
                        found[state.name] = found.get(state.name, frozenset()) | frozenset(beside)
                break
    return found


def _free(machine: Machine | None) -> float | None:
    if machine is None or machine.memory_total is None or machine.memory_used is None:
        return None
    return machine.memory_total - machine.memory_used


def _fallen(state: BackendState) -> bool:
    return state.health.state in (State.DOWN, State.WARMING)


def _local_and_well(state: BackendState) -> bool:
    return not state.backend.cloud and state.health.state in SERVING


def places(backend: Backend) -> frozenset[str]:
    """The machines it runs on: its nodes, else its host."""
    return frozenset(backend.nodes or (backend.origin[1],))
