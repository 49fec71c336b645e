"""Warm standby: fallbacks whose server loads models on demand (Ollama) are loaded ahead, as soon as the first step of
their alias falls, so that the first fallback request need not wait for a model to load. A fallback that shares a
machine with the fallen backend is loaded only where the exporter showed room for both while that one ran: it needs its
memory to come back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Protocol

import httpx

from gateway.config.snapshot import Alias, Backend, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import TRAITS
from gateway.domain.fleet import Fleet
from gateway.domain.health_state import SERVING, WELL, State
from gateway.engines.ollama.models import INSTALLED, LOAD, LOADED, load_body, model_names, model_size
from gateway.health.nodes import Machine
from gateway.health.probe_client import NoAnswer, ProbeClient, decoded
from gateway.shortage import OwnShortage
from gateway.supervision import Failures

log = logging.getLogger("gateway.health")

LOOK = 0.5  # seconds between two looks at the aliases
KEEP = "10m"  # how long Ollama keeps a model that was loaded ahead
RENEW = 240.0  # seconds until that time is set again: a request sets its own, shorter one
RETRY = 30.0  # seconds after a load that did not work
LOADING = 300.0  # seconds that a load may take
MEMORY_TIMES = 1.5  # so many times its file's size a model takes with a window; no server reports it before the load
MARGIN = 1 << 30  # bytes of a machine's memory that are left alone


class Loader(Protocol):
    """Where models are loaded on demand: how large one is, whether it is loaded, and how to load it."""

    async def size(self, state: BackendState) -> int | None: ...

    async def has_loaded(self, state: BackendState) -> bool: ...

    async def load(self, state: BackendState, keep_alive: str | int) -> bool: ...


class OllamaLoader:
    """The `Loader` that asks Ollama's own API. Raises nothing."""

    def __init__(self, client: ProbeClient) -> None:
        self._client = client

    async def size(self, state: BackendState) -> int | None:
        """Bytes of the backend's model on disk; None = not reported."""
        answer = await self._client.get(state.backend, INSTALLED)
        if isinstance(answer, NoAnswer) or answer.status_code != 200:
            return None
        return model_size(decoded(answer, {}), state.model or "")

    async def has_loaded(self, state: BackendState) -> bool:
        """Does this Ollama hold the backend's model in memory? Yes also where the gateway itself lacked something to
        ask with, so that nothing is concluded from that."""
        answer = await self._client.get(state.backend, LOADED)
        if isinstance(answer, NoAnswer) and answer.own:
            return True
        if isinstance(answer, NoAnswer) or answer.status_code != 200:
            return False
        return (state.model or "") in model_names(decoded(answer, {}))

    async def load(self, state: BackendState, keep_alive: str | int) -> bool:
        """Load the backend's model, with the window that requests ask for, and keep it for `keep_alive` (Ollama's
        duration); 0 = unload it. True = done."""
        try:
            answer = await self._client.post(state.backend, LOAD, load_body(state, keep_alive), LOADING)
        except (httpx.HTTPError, OwnShortage) as error:
            log.info("%s was not asked to load its model: %s", state.name, error or type(error).__name__)
            return False
        return answer.status_code == 200


class WarmStandby:
    """`machines`: node -> what its exporter reported. `loaded`: the backends whose model was loaded ahead, and when
    (monotonic seconds). `free`: free bytes on the nodes of each backend when it was last well."""

    def __init__(
        self, fleet: Fleet, loader: Loader, machines: Mapping[str, Machine], failures: Failures | None = None
    ) -> None:
        self._fleet = fleet
        self._failures = failures or Failures()
        self._loader = loader
        self._machines = machines
        self._aliases: Mapping[str, Alias] = {}
        self._not_before: dict[str, float] = {}
        self.loaded: dict[str, float] = {}
        self.free: dict[str, float] = {}

    def follow(self, snapshot: Snapshot) -> None:
        """The aliases are those of `snapshot` from now on."""
        self._aliases = snapshot.aliases

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self.look(time.monotonic())
            except Exception:
                self._failures.note("standby", "loading fallbacks ahead")

    async def look(self, now: float) -> None:
        """Load what is needed now, and unload what was loaded ahead and is needed no longer."""
        states = self._fleet.states
        self._note_free_memory()
        needed = fallbacks_needed(self._aliases, states)
        for name, neighbours in needed.items():
            if now < self._not_before.get(name, 0.0):
                continue
            if name in self.loaded or not neighbours or await self._fits_memory(states[name], neighbours):
                await self._keep_loaded(states[name], now)
            else:
                self._not_before[name] = now + RETRY
        for name in self.loaded.keys() - needed.keys():
            state = states.get(name)
            if state is None or state.health.state not in SERVING:
                del self.loaded[name]
            elif not state.under_way:
                del self.loaded[name]
                log.info("%s is no longer needed: unloaded", name)
                await self._loader.load(state, 0)
        for name in self._not_before.keys() - needed.keys():
            del self._not_before[name]

    def _note_free_memory(self) -> None:
        """Remember how much memory is free beside each backend that is well."""
        for state in self._fleet.states.values():
            if state.health.state in WELL and (free := self._free_bytes(state)) is not None:
                self.free[state.name] = free
        for name in self.free.keys() - self._fleet.states.keys():
            del self.free[name]

    def _free_bytes(self, state: BackendState) -> float | None:
        """Free bytes of the fullest of its nodes; None where the exporter of one does not report them."""
        frees = [_free_of(self._machines.get(node)) for node in state.backend.nodes]
        known = [free for free in frees if free is not None]
        return min(known) if known and len(known) == len(frees) else None

    async def _fits_memory(self, state: BackendState, neighbours: frozenset[str]) -> bool:
        """Does its model fit into what is free now, and into what was free beside each neighbour that has to come
        back?"""
        rooms = [self._free_bytes(state), *(self.free.get(name) for name in neighbours)]
        known = [room for room in rooms if room is not None]
        if len(known) < len(rooms):
            return False
        size = await self._loader.size(state)
        return size is not None and min(known) >= size * MEMORY_TIMES + MARGIN

    async def _keep_loaded(self, state: BackendState, now: float) -> None:
        """Load the model, or have it kept longer. A model that somebody else has loaded is neither kept nor
        unloaded."""
        if state.name not in self.loaded and await self._loader.has_loaded(state):
            self._not_before[state.name] = now + RENEW
            return
        if state.name not in self.loaded:
            log.info("%s is loaded ahead, as a fallback", state.name)
        if await self._loader.load(state, KEEP):
            self.loaded[state.name] = now
            self._not_before[state.name] = now + RENEW
        else:
            self._not_before[state.name] = now + RETRY


def fallbacks_needed(aliases: Mapping[str, Alias], states: Mapping[str, BackendState]) -> dict[str, frozenset[str]]:
    """The backends that load on demand and serve an alias now because its first step has fallen -> the names of the
    fallen backends that share a machine with them."""
    found: dict[str, frozenset[str]] = {}
    for alias in aliases.values():
        if not alias.steps or not all(_fallen(states[name]) for name in alias.steps[0]):
            continue
        for step in alias.steps[1:]:
            usable = [states[name] for name in step if _local_and_well(states[name])]
            if usable:
                for state in usable:
                    if TRAITS[state.backend.engine].loads_on_demand:
                        beside = (n for n in alias.steps[0] if hosts_of(states[n].backend) & hosts_of(state.backend))
                        found[state.name] = found.get(state.name, frozenset()) | frozenset(beside)
                break
    return found


def _free_of(machine: Machine | None) -> float | None:
    if machine is None or machine.memory_total is None or machine.memory_used is None:
        return None
    return machine.memory_total - machine.memory_used


def _fallen(state: BackendState) -> bool:
    return state.health.state in (State.DOWN, State.WARMING)


def _local_and_well(state: BackendState) -> bool:
    return not state.backend.cloud and state.health.state in SERVING


def hosts_of(backend: Backend) -> frozenset[str]:
    """The machines that a backend runs on: its nodes, else the host of its URL."""
    return frozenset(backend.nodes or (backend.origin[1],))
