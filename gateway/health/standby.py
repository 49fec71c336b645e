"""Fallbacks of Ollama that are loaded ahead: when the first step of an alias falls, the first fallback request should
not be the one that waits for a model to load. Never on the node of what fell: it needs its memory to come back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Protocol

from gateway.config.snapshot import Alias, Backend, Snapshot
from gateway.fleet import BackendState, Fleet
from gateway.health.state import SERVING, State

log = logging.getLogger("gateway.health")

LOOK = 0.5  # seconds between two looks at the aliases
KEEP = "10m"  # how long Ollama keeps what we have loaded
RENEW = 240.0  # seconds until it is told so again: a request sets its own, shorter time
RETRY = 30.0  # seconds after a load that did not work


class Loader(Protocol):
    async def has_loaded(self, state: BackendState) -> bool: ...

    async def load(self, state: BackendState, keep_alive: str | int) -> bool: ...


class Standby:
    """`ours`: the backends whose model was loaded because of us -> when Ollama was last told to keep it."""

    def __init__(self, fleet: Fleet, loader: Loader) -> None:
        self._fleet = fleet
        self._loader = loader
        self._aliases: Mapping[str, Alias] = {}
        self._not_before: dict[str, float] = {}
        self.ours: dict[str, float] = {}

    def take(self, snapshot: Snapshot) -> None:
        self._aliases = snapshot.aliases

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self.look(time.monotonic())
            except Exception:
                log.exception("loading fallbacks ahead failed inside the gateway")

    async def look(self, now: float) -> None:
        states = self._fleet.states
        needed = wanted(self._aliases, states)
        for name in needed:
            if now >= self._not_before.get(name, 0.0):
                await self._keep(states[name], now)
        for name in self.ours.keys() - needed:
            state = states.get(name)
            if state is None or state.health.state not in SERVING:
                del self.ours[name]
            elif not state.inflight:
                del self.ours[name]
                log.info("%s is no longer needed: unloaded", name)
                await self._loader.load(state, 0)
        for name in self._not_before.keys() - needed:
            del self._not_before[name]

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


def wanted(aliases: Mapping[str, Alias], states: Mapping[str, BackendState]) -> set[str]:
    """The Ollama backends that serve an alias now because its first step has fallen, and share no node with that."""
    found: set[str] = set()
    for alias in aliases.values():
        if not alias.steps or not all(_fallen(states[name]) for name in alias.steps[0]):
            continue
        taken = frozenset[str]().union(*(places(states[name].backend) for name in alias.steps[0]))
        for step in alias.steps[1:]:
            usable = [states[name] for name in step if _local_and_well(states[name])]
            if usable:
                found |= {s.name for s in usable if s.backend.engine == "ollama" and not places(s.backend) & taken}
                break
    return found


def _fallen(state: BackendState) -> bool:
    return state.health.state in (State.DOWN, State.WARMING)


def _local_and_well(state: BackendState) -> bool:
    return not state.backend.cloud and state.health.state in SERVING


def places(backend: Backend) -> frozenset[str]:
    """The machines it runs on: its nodes, else its host."""
    return frozenset(backend.nodes or (backend.origin[1],))
