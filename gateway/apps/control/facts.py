"""The fleet as starting.py wants to know it: what runs, since when it is idle, and the memory of the nodes. Times are
kept in `server.data`, so that a restart of the gateway goes on counting."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.apps.control.starting import Room, StartMember
from gateway.apps.control.switching import presence_of
from gateway.apps.control.unit_commands import stop_commands
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Backend, Mode, Snapshot
from gateway.config.sources import keep, read_kept
from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import TRAITS
from gateway.domain.health_state import State
from gateway.health.nodes import Machine

if TYPE_CHECKING:
    from gateway.apps.control.memory.arithmetic import Demand

Demands = Mapping[str, Mapping[str, "Demand"]]
"""Node -> backend -> what it asks of that node."""

log = logging.getLogger("gateway")

FILE = "on_request.json"
GIB = 1024**3  # bytes
REPORTED_LATELY = 30.0  # seconds for which a report of a node's exporter counts
RUNS = frozenset({State.READY, State.BUSY, State.SUSPECT, State.MISCONFIGURED})


def demands_of(snapshot: Snapshot) -> Demands:
    """What each backend asks of its nodes, as it is launched in the mode in force. Reads files of models: for a
    thread. Only where requests start backends is the planner of memory imported."""
    from gateway.apps.control.memory.model_catalog import models_of, shipped_models
    from gateway.apps.control.memory.model_files import read_models
    from gateway.apps.control.memory.plan import plan

    try:
        catalog = models_of(snapshot)
    except ConfigError:  # `gateway check` reports it
        catalog = shipped_models()
    mode = snapshot.modes.get(snapshot.mode) if snapshot.mode is not None else None
    names = tuple(name for name, backend in snapshot.engines.items() if not backend.cloud)
    everything = Mode("", names, mode.profiles if mode is not None else {})
    nodes = plan(replace(snapshot, modes={"": everything}), "", catalog, {}, read_models(snapshot)).nodes
    return {name: node.demands for name, node in nodes.items()}


def rooms_of(snapshot: Snapshot, demands: Demands, machines: Mapping[str, Machine]) -> dict[str, Room]:
    """The memory of each node, with what its exporter has reported lately."""
    rooms = {}
    for name in {*demands, *snapshot.nodes}:
        known = snapshot.nodes.get(name)
        memory = known.memory / GIB if known is not None and known.memory else None
        room = Room(memory, _free(machines.get(name)), demands.get(name, {}))
        rooms[name] = room if known is None or known.reserve is None else replace(room, reserve=known.reserve / GIB)
    return rooms


def _free(machine: Machine | None) -> float | None:
    if machine is None or not machine.there or time.time() - machine.at > REPORTED_LATELY:
        return None
    if machine.memory_total is None or machine.memory_used is None:
        return None
    return (machine.memory_total - machine.memory_used) / GIB


def members_of(
    snapshot: Snapshot, states: Mapping[str, BackendState], use: UseTracker, waiting: Mapping[str, int]
) -> dict[str, StartMember]:
    """Every local backend as it is now; times are Unix seconds."""
    local = [state for state in states.values() if not state.backend.cloud and state.host is None]
    return {state.name: _member(snapshot, state, use, waiting) for state in local}


def _member(snapshot: Snapshot, state: BackendState, use: UseTracker, waiting: Mapping[str, int]) -> StartMember:
    backend, known = state.backend, use.known.get(state.name)
    rests = known is not None and state.health.state in RUNS and not has_work(state, waiting)
    return StartMember(
        backend.name,
        backend.nodes,
        there=is_there(state),
        expected=backend.in_mode if snapshot.mode is not None else backend.run == "always",
        on_request=backend.run == "on_request",
        idle_since=known.used_at if known is not None and rests else None,
        ran_since=known.ran_since if known is not None else time.time(),
        min_run=backend.min_run,
        unstoppable="is starting" if state.health.state is State.WARMING else why_unstoppable(snapshot, backend),
    )


def is_there(state: BackendState) -> bool:
    """Does its engine hold memory, as far as is known? One that starts, or that answers wrongly, does."""
    if presence_of(state) != "away" or state.health.state in (State.WARMING, State.MISCONFIGURED):
        return True
    return state.health.state is State.DOWN and not state.health.gone


def why_unstoppable(snapshot: Snapshot, backend: Backend) -> str:
    """Why the gateway cannot stop it without harm; empty = it can."""
    if not stop_commands(backend, snapshot.nodes):
        return "has no `stop` command"
    if not TRAITS[backend.engine].loads_on_demand:
        return ""
    same = [b.name for b in snapshot.backends.values() if b is not backend and b.url and b.origin == backend.origin]
    return f"has one server with {', '.join(same)}" if same else ""


# -- use --------------------------------------------------------------------------------------------------------------


class Use(msgspec.Struct):
    """When a backend that requests start became ready, and when it last had work, in Unix seconds."""

    ran_since: float
    used_at: float


class UseTracker:
    """`known`: backend -> its use, of those that run. `changed`: something is known that was not stored."""

    def __init__(self, folder: Path) -> None:
        self.known: dict[str, Use] = {}
        self.changed = False
        self._file = folder / FILE

    def load(self) -> None:
        """Read what was stored. Blocks. A file that cannot be read counts as none: what runs has just become idle."""
        stored = read_kept(self._file, dict[str, Use], log, "idle times begin at 0") or {}
        now = time.time()  # the clock may have been set back
        self.known = {name: Use(min(use.ran_since, now), min(use.used_at, now)) for name, use in stored.items()}

    def save(self, encoded: bytes) -> None:
        """Store `encode()`. Blocks."""
        keep(self._file, msgspec.Raw(encoded), log)

    def encode(self) -> bytes:
        self.changed = False
        return msgspec.json.encode(self.known)

    def look(self, states: Iterable[BackendState], waiting: Mapping[str, int]) -> None:
        """Note which of these backends have work now. `waiting`: backend -> requests in its queue."""
        now, present = time.time(), set()
        for state in states:
            present.add(state.name)
            use = self.known.get(state.name)
            if state.health.state in (State.PARKED, State.DRAINING):
                self.changed |= self.known.pop(state.name, None) is not None
            elif state.health.state in RUNS and use is None:
                self.known[state.name] = Use(now, now)
                self.changed = True
            elif use is not None and (used := _used_at(state, waiting, now)) > use.used_at:
                use.used_at = used
                self.changed = True
        for name in self.known.keys() - present:
            del self.known[name]
            self.changed = True

    def idle(self, name: str) -> float | None:
        """Seconds since it last had work; None = it does not run."""
        use = self.known.get(name)
        return None if use is None else max(0.0, time.time() - use.used_at)


def has_work(state: BackendState, waiting: Mapping[str, int]) -> bool:
    """Does it have a request, of this gateway, another one or another client of the engine, or one that waits?"""
    return bool(state.under_way or state.shared.elsewhere_lately or state.foreign or waiting.get(state.name, 0))


def _used_at(state: BackendState, waiting: Mapping[str, int], now: float) -> float:
    """When it last had work, as far as is known here. Between two looks a request may have come and gone."""
    if has_work(state, waiting):
        return now
    answered = state.evidence.answered_at
    return now - (time.monotonic() - answered) if answered else 0.0
