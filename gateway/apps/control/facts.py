"""The fleet as `fleet/starting.py` wants to know it: what runs, what is idle, and the memory of the nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.apps.control.planning import presence_of
from gateway.apps.control.starting import Room, StartMember
from gateway.apps.control.unit_commands import stop_commands
from gateway.apps.control.use import UseTracker, has_work
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Backend, Mode, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import TRAITS
from gateway.domain.health_state import State
from gateway.health.nodes import Machine

if TYPE_CHECKING:
    from gateway.apps.control.memory.demand import Demand

Demands = Mapping[str, Mapping[str, "Demand"]]
"""Node -> backend -> what it asks of that node."""

GIB = 1024**3  # bytes
REPORTED_LATELY = 30.0  # seconds for which a report of a node's exporter counts
_MAY_BE_STOPPED = frozenset({State.READY, State.BUSY, State.SUSPECT, State.MISCONFIGURED})


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
    names = {*demands, *snapshot.nodes}
    return {name: _room(snapshot, name, machines.get(name), demands.get(name, {})) for name in names}


def _room(snapshot: Snapshot, node: str, machine: Machine | None, demands: Mapping[str, Demand]) -> Room:
    known = snapshot.nodes.get(node)
    memory = known.memory / GIB if known is not None and known.memory else None
    room = Room(memory, _free(machine), demands)
    return room if known is None or known.reserve is None else replace(room, reserve=known.reserve / GIB)


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
    rests = known is not None and state.health.state in _MAY_BE_STOPPED and not has_work(state, waiting)
    return StartMember(
        backend.name,
        backend.nodes,
        there=is_there(state),
        expected=is_expected(snapshot, backend),
        on_request=backend.run == "on_request",
        idle_since=known.used_at if known is not None and rests else None,
        ran_since=known.ran_since if known is not None else time.time(),
        min_run=backend.min_run,
        unstoppable="is starting" if state.health.state is State.WARMING else why_unstoppable(snapshot, backend),
    )


def is_expected(snapshot: Snapshot, backend: Backend) -> bool:
    """Is it to run now, whether requests come or not?"""
    return backend.in_mode if snapshot.mode is not None else backend.run == "always"


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
