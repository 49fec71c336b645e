"""The steps of an operation, with the memory plan behind them. Reads files of models; changes nothing.

The planner of memory is imported by the first plan: a gateway that only serves has no use for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from gateway.apps.control.record import Kind
from gateway.apps.control.switching import (
    NOTHING,
    Presence,
    Steps,
    beside,
    restart_steps,
    start_steps,
    stop_steps,
    switch_steps,
    usual_profile,
)
from gateway.apps.control.units import Activity
from gateway.config.modes import in_mode
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.routing.serving import unserved

if TYPE_CHECKING:
    from gateway.apps.control.memory.plan import FleetPlan


def steps_of(
    kind: Kind,
    name: str,
    snapshot: Snapshot,
    current: str | None,
    presence: Mapping[str, Presence],
    started: Mapping[str, str] = NOTHING,
    idle: Collection[str] = (),
    profile: str | None = None,
) -> Steps:
    """The steps to the mode, or for the backend, of this name, which there is. `current`: the mode in force; `started`:
    backend -> the profile that the gateway last started it with; `idle`: backends that it knows not to have started;
    `profile`: the one that a start asks for, None = any. Takes a while: for a thread."""
    if kind == "stop":
        return stop_steps(snapshot, name, presence)
    if kind == "switch":
        steps = switch_steps(snapshot, name, current, presence, memory_plan(snapshot, name), started, idle)
        steps.notes[:0] = _lost(snapshot, name, current)
        return steps
    usual = usual_profile(snapshot, name, current)
    runs = started.get(name, usual)
    if kind == "restart":
        return restart_steps(snapshot, name, presence, runs)
    is_there = presence.get(name, "away") != "away"
    wanted = profile if profile is not None else runs if is_there else usual
    found = memory_plan(beside(snapshot, name, presence, current, wanted), None)
    return start_steps(snapshot, name, presence, found, wanted, runs)


def _lost(snapshot: Snapshot, target: str, current: str | None) -> list[str]:
    """What the operator should know of the aliases that nobody serves in the target mode."""
    after = unserved(in_mode(snapshot, target))
    before = unserved(in_mode(snapshot, current)) if current is not None else []
    lost = [name for name in after if name not in before]
    count = sum(not alias.implicit for alias in snapshot.aliases.values())
    return [f"{len(lost)} of {count} aliases lose their service: {', '.join(lost)}"] if lost else []


def beside_units(presence: Mapping[str, Presence], units: Mapping[str, Activity | None]) -> dict[str, Presence]:
    """With what the units say of the backends that do not answer. `units`: backend -> how its units are."""
    seen: dict[Activity | None, Presence] = {"runs": "loading", "partly": "partly"}
    return {name: seen.get(units.get(name), "away") if one == "away" else one for name, one in presence.items()}


def presence_of(state: BackendState) -> Presence:
    """Whether a backend serves, or answers and gets no requests, as far as its checks say."""
    health = state.health
    if health.state in (State.READY, State.BUSY, State.SUSPECT):
        return "up"
    return "drained" if health.state in (State.DRAINING, State.PARKED) and health.oks > 0 else "away"


def assumed_presence(snapshot: Snapshot, current: str | None) -> dict[str, Presence]:
    """Without a gateway to ask: the backends of the mode in force run, and no others."""
    mode = snapshot.modes.get(current) if current is not None else None
    running = mode.backends if mode is not None else ()
    return {name: "up" if name in running else "away" for name in snapshot.backends}


def memory_plan(snapshot: Snapshot, mode: str | None) -> FleetPlan | str:
    """The memory plan of a mode; a text instead says what is wrong with the operator's catalogue."""
    from gateway.apps.control.memory.model_catalog import models_of
    from gateway.apps.control.memory.model_files import read_models
    from gateway.apps.control.memory.plan import plan

    try:
        catalog = models_of(snapshot)
    except ConfigError as error:
        return str(error)
    return plan(snapshot, mode, catalog, {}, read_models(snapshot))
