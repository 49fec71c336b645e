"""Warm standby. When the first step of an alias is down, the models of its fallbacks on servers that load on demand
(Ollama) are loaded in advance, so that the first fallback request does not wait for the load. A fallback on the machine
of the backend that is down is loaded only if the exporter reported enough free memory for both while that backend was
running, because the backend needs its memory again when it comes back. With modes nothing is loaded on a machine that
another backend of the mode in force runs on, and what was loaded for another mode is unloaded. Nothing is loaded beside
a backend that a request has had started either."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from gateway.config.snapshot import Alias, Backend, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.fleet import Fleet
from gateway.domain.health_state import SERVING, WELL, State
from gateway.health.nodes import Machine
from gateway.health.ollama_loader import OllamaLoader
from gateway.supervision import Failures, cancel

log = logging.getLogger("gateway.health")

LOOK = 0.5  # seconds between two checks of which fallbacks are needed
SELDOM = 5.0  # the same while no backend loads on demand: each wakes the event loop
KEEP = "10m"  # how long Ollama keeps a model that was loaded in advance
RENEW = 240.0  # seconds until `KEEP` is sent again: a request replaces it by a shorter time
RETRY = 30.0  # seconds until a load that failed, or that did not fit, is tried again
MEMORY_TIMES = 1.5  # memory of a loaded model (with its window) per byte of its file; estimated, not reported
MARGIN = 1 << 30  # bytes of a machine's memory that stay free


class WarmStandby:
    """Loads and unloads fallbacks. `snapshot`: the one in force; `machines`: node -> the last report of its exporter.
    `loaded`: backend -> when its model was loaded in advance (monotonic seconds). `free`: backend -> free bytes on its
    nodes when it was last well."""

    def __init__(
        self,
        fleet: Fleet,
        snapshot: Callable[[], Snapshot],
        loader: OllamaLoader,
        machines: Mapping[str, Machine],
        failures: Failures | None = None,
    ) -> None:
        self._fleet, self._snapshot = fleet, snapshot
        self._failures = failures or Failures()
        self._loader = loader
        self._machines = machines
        self._not_before: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self.loaded: dict[str, float] = {}
        self.free: dict[str, float] = {}

    async def open(self) -> None:
        self._task = self._failures.task("standby", self.run)

    async def close(self) -> None:
        await cancel(self._task)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK if any(s.traits.loads_on_demand for s in self._fleet.states.values()) else SELDOM)
            try:
                await self.look(time.monotonic())
            except Exception:
                self._failures.note("standby", "loading fallbacks ahead")

    async def look(self, now: float) -> None:
        """Load the fallbacks that are needed now, and unload those that are no longer needed."""
        states, snapshot = self._fleet.states, self._snapshot()
        in_mode = snapshot.mode is not None
        self._note_free_memory()
        needed = fallbacks_needed(snapshot.aliases, states)
        needed = {name: near for name, near in needed.items() if not is_taken(states[name], states, in_mode)}
        for name, neighbours in needed.items():
            if now < self._not_before.get(name, 0.0):
                continue
            if name in self.loaded or not neighbours or await self._fits_memory(states[name], neighbours):
                await self._keep_loaded(states[name], now)
            else:
                self._not_before[name] = now + RETRY
        for name in self.loaded.keys() - needed.keys():
            state = states.get(name)
            if state is None or (state.health.state not in SERVING and not state.health.outside):
                del self.loaded[name]
            elif not state.under_way:
                del self.loaded[name]
                log.info("%s is no longer needed: unloaded", name)
                await self._loader.load(state, 0)
        for name in self._not_before.keys() - needed.keys():
            del self._not_before[name]

    def _note_free_memory(self) -> None:
        """Remember how much memory is free on the nodes of each backend that is well."""
        for state in self._fleet.states.values():
            if state.health.state in WELL and (free := self._free_bytes(state)) is not None:
                self.free[state.name] = free
        for name in self.free.keys() - self._fleet.states.keys():
            del self.free[name]

    def _free_bytes(self, state: BackendState) -> float | None:
        """The free bytes of the backend's node with the least free memory; None if a node does not report them."""
        per_node = [_free_of(self._machines.get(node)) for node in state.backend.nodes]
        known = [free for free in per_node if free is not None]
        return min(known) if known and len(known) == len(per_node) else None

    async def _fits_memory(self, state: BackendState, neighbours: frozenset[str]) -> bool:
        """Does the model fit into the memory that is free now, and into the memory that was free while each neighbour
        was running? `neighbours`: the backends on the same machine that are down and have to come back."""
        limits = [self._free_bytes(state), *(self.free.get(name) for name in neighbours)]
        known = [free for free in limits if free is not None]
        if len(known) < len(limits):
            return False
        size = await self._loader.size(state)
        return size is not None and min(known) >= size * MEMORY_TIMES + MARGIN

    async def _keep_loaded(self, state: BackendState, now: float) -> None:
        """Load the model, or extend the time for which it is kept. A model that was not loaded by the gateway is
        neither kept nor unloaded."""
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
    """The fallbacks that load on demand and are needed because the first step of an alias is down -> the backends of
    that step on the same machine. Backends outside the mode in force are as if the alias did not name them."""
    needed: dict[str, frozenset[str]] = {}
    for alias in aliases.values():
        steps = [[name for name in step if not states[name].health.set_aside] for step in alias.steps]
        first, *later = [step for step in steps if step] or [[]]
        if not first or not all(_is_down_or_warming(states[name]) for name in first):
            continue
        for step in later:
            usable = [states[name] for name in step if _is_local_and_serving(states[name])]
            if usable:
                for state in usable:
                    if state.traits.loads_on_demand:
                        hosts = hosts_of(state.backend)
                        neighbours = frozenset(n for n in first if hosts_of(states[n].backend) & hosts)
                        needed[state.name] = needed.get(state.name, frozenset()) | neighbours
                break
    return needed


def is_taken(state: BackendState, states: Mapping[str, BackendState], in_mode: bool = True) -> bool:
    """Does another backend need the memory of a machine of this one: one of the mode in force, there or not, one
    that a switch under way brings, or one that a request has had started? `in_mode`: routes.yaml has modes."""
    others = (other for other in states.values() if other is not state and not other.backend.cloud)
    return any(_needs_memory(other, in_mode) and _share_machine(state.backend, other.backend) for other in others)


def _needs_memory(state: BackendState, in_mode: bool) -> bool:
    if state.backend.run == "on_request" and not state.backend.in_mode:
        return state.health.state is not State.PARKED
    return in_mode and (not state.health.outside or state.health.coming)


def _share_machine(one: Backend, other: Backend) -> bool:
    """Where one of them has no node, the hosts of their URLs count too."""
    same_host = not (one.nodes and other.nodes) and one.origin[1] == other.origin[1]
    return same_host or bool(hosts_of(one) & hosts_of(other))


def _free_of(machine: Machine | None) -> float | None:
    if machine is None or machine.memory_total is None or machine.memory_used is None:
        return None
    return machine.memory_total - machine.memory_used


def _is_down_or_warming(state: BackendState) -> bool:
    return state.health.state in (State.DOWN, State.WARMING)


def _is_local_and_serving(state: BackendState) -> bool:
    return not state.backend.cloud and state.health.state in SERVING


def hosts_of(backend: Backend) -> frozenset[str]:
    """The machines that a backend runs on: its nodes; without any, the host of its URL."""
    return frozenset(backend.nodes or (backend.origin[1],))
