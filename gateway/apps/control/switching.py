"""The steps of a switch from one mode to another, and of a start or stop of one backend, with the memory plan behind
them. Changes nothing.

First the backends that leave are drained and stopped, then those that come are started one after the other, in the
memory plan's order: an engine takes more memory while it starts than it keeps. The planner of memory is imported by the
first plan: a gateway that only serves has no use for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from gateway.apps.control.unit_commands import Command, Unit, journal_of, start_commands, stop_commands, units_of
from gateway.apps.control.units import Activity
from gateway.config.modes import in_mode
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Backend, Mode, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.routing.serving import unserved

if TYPE_CHECKING:
    from gateway.apps.control.memory.plan import FleetPlan

Kind = Literal["switch", "start", "stop", "restart"]
What = Literal["drain", "stop", "preflight", "start", "wait", "resume"]
Presence = Literal["up", "drained", "loading", "partly", "away"]
"""Of a backend: it serves; it answers but gets no requests; its units run and it does not answer yet; some of its units
run; or it does not answer or was not checked yet."""

NOTHING: Mapping[str, str] = MappingProxyType({})
LOADS = "loads already"
_TO_WAIT_FOR = ("away", "loading")
_ALONE = "start"  # the name of the mode that stands for one backend beside those that run


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """`commands`: those to run. `units`: of a stop those that it has to bring down, of a wait those that tell whether
    it is in vain. `skip`: why there is nothing to do. `journal`: a command that shows why it failed. `profile`: the one
    that the backend is started with, "" = none. `early`: a preflight of what no stop mends, before anything is
    stopped."""

    backend: str
    what: What
    commands: tuple[Command, ...] = ()
    skip: str = ""
    journal: str = ""
    profile: str = ""
    units: tuple[Unit, ...] = ()
    early: bool = False


@dataclass(slots=True)
class Steps:
    """The steps of one operation in their order, as each method adds them. `presence`: of the backends, before the
    first step. `refusals`: why it must not begin, unless it is forced. `notes`: remarks for the operator."""

    snapshot: Snapshot
    presence: Mapping[str, Presence]
    steps: list[PlannedStep] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def leave(self, names: Iterable[str]) -> None:
        """Drain all of them, then stop each."""
        backends = [self.snapshot.backends[name] for name in names]
        self.steps += [PlannedStep(backend.name, "drain") for backend in backends]
        for backend in backends:
            commands = stop_commands(backend, self.snapshot.nodes)
            skip = "" if commands else "no `stop` command"
            if not commands and self.presence.get(backend.name, "away") != "away":
                self.refusals.append(_no_command(backend, "stop"))
            units = units_of(backend, self.snapshot.nodes)
            self.steps.append(PlannedStep(backend.name, "stop", commands, skip, units=units))

    def come(self, names: Iterable[str], profiles: Mapping[str, str] = NOTHING, again: Collection[str] = ()) -> None:
        """Start one after the other, each with its profile. `again`: those that ran with another one."""
        for backend in (self.snapshot.backends[name] for name in names):
            profile = profiles.get(backend.name, "")
            commands = start_commands(backend, self.snapshot.nodes, profile)
            journal, units = journal_of(backend, self.snapshot.nodes), units_of(backend, self.snapshot.nodes)
            loads = LOADS if self.presence.get(backend.name) == "loading" and backend.name not in again else ""
            if not commands:
                self.refusals.append(_no_command(backend, "start"))
            if backend.start is not None and (profile or backend.name in again):
                what = f"profile {profile}" if profile else "no profile"
                own = "and its `start` is a command of your own: it has to see to that"
                self.notes.append(f"{backend.name} is to run with {what}, {own}")
            skip = loads or ("" if commands else "no `start` command")
            unreached = loads or _unreached(backend, self.snapshot)
            self.steps += [
                PlannedStep(backend.name, "preflight", skip=unreached, profile=profile),
                PlannedStep(backend.name, "start", commands, skip, profile=profile),
                PlannedStep(backend.name, "wait", skip=_unprobed(backend), journal=journal, units=units),
                PlannedStep(backend.name, "resume"),
            ]

    def look_ahead(self, names: Iterable[str], profiles: Mapping[str, str]) -> None:
        """Before anything is stopped: what keeps these from starting, and no stop mends."""
        for backend in (self.snapshot.backends[name] for name in names):
            if units_of(backend, self.snapshot.nodes):
                profile = profiles.get(backend.name, "")
                self.steps.append(PlannedStep(backend.name, "preflight", profile=profile, early=True))

    def resume(self, names: Iterable[str]) -> None:
        """Let requests go again to what answers."""
        self.steps += [PlannedStep(name, "resume") for name in names]

    def wait(self, names: Iterable[str]) -> None:
        """Until they serve."""
        self.steps += [PlannedStep(name, "wait", skip=_unprobed(self.snapshot.backends[name])) for name in names]


def switch_steps(
    snapshot: Snapshot,
    target: str,
    current: str | None,
    presence: Mapping[str, Presence],
    plan: FleetPlan | str,
    started: Mapping[str, str] = NOTHING,
    idle: Collection[str] = (),
) -> Steps:
    """From the mode `current` (None if not known) to `target`. `plan`: the memory plan of the target, or why there is
    none. `started`: backend -> the profile that the gateway last started it with, "" = none. `idle`: backends that it
    knows not to have started. Backends that are in no mode, and clouds, are left alone."""
    modes = snapshot.modes
    mode, before = modes[target], modes.get(current) if current is not None else None
    was_in_force = before.backends if before is not None else ()

    def leaves(name: str) -> bool:
        """Whether the backend is no part of the target, and belongs to the mode in force, where it may be loading, is
        left from another one, or was started for a request. What the gateway has started and not stopped may be
        loading, whatever a later operation came to."""
        if name in mode.backends:
            return False
        is_there = presence.get(name, "away") != "away"
        if name in was_in_force and name not in idle:
            return True
        if snapshot.backends[name].run == "on_request":  # the target's memory plan does not count it
            return is_there
        return (is_there or name in started) and any(name in other.backends for other in modes.values())

    def runs_otherwise(name: str) -> bool:
        """Whether it runs, or may be loading, with another profile than that of the target. A switch that failed may
        have left it with that of an earlier mode, so how it was started counts more than the mode in force."""
        usual = usual_profile(snapshot, name, current) if name in was_in_force else mode.profiles.get(name, "")
        return started.get(name, usual) != mode.profiles.get(name, "")

    draft = Steps(snapshot, presence, refusals=_misfits(plan))
    again = [name for name in mode.backends if runs_otherwise(name) or presence.get(name) == "partly"]
    leaving = [name for name in snapshot.engines if leaves(name)]
    coming = [name for name in mode.backends if presence.get(name, "away") in _TO_WAIT_FOR or name in again]
    drained = [name for name in mode.backends if presence.get(name) == "drained" and name not in coming]
    if leaving or again:
        draft.look_ahead([name for name in coming if presence.get(name) != "loading"], mode.profiles)
    draft.leave([*leaving, *again])
    draft.resume(drained)  # what runs serves while the others load
    draft.come(load_order(coming, plan), mode.profiles, again)
    draft.wait(drained)
    return draft


def start_steps(
    snapshot: Snapshot,
    name: str,
    presence: Mapping[str, Presence],
    plan: FleetPlan | str,
    profile: str = "",
    runs: str = "",
) -> Steps:
    """Start one backend with a profile. `plan`: the memory plan of `beside`. `runs`: the profile that it runs with, if
    it runs: with another one it is stopped first."""
    draft = Steps(snapshot, presence, refusals=_misfits(plan))
    if presence.get(name, "away") == "away" or (presence[name] == "loading" and runs == profile):
        draft.come([name], {name: profile})
    elif runs != profile or presence[name] == "partly":
        draft.leave([name])
        draft.come([name], {name: profile}, [name])
    else:
        draft.notes.append(f"{name} runs already")
        draft.resume([name])
        draft.wait([name])
    return draft


def request_steps(snapshot: Snapshot, name: str, stops: Iterable[str], notes: Iterable[str]) -> Steps:
    """Start one backend for a request, after these were stopped for it."""
    draft = Steps(snapshot, {}, notes=list(notes))
    draft.leave(stops)
    draft.come([name])
    return draft


def stop_steps(snapshot: Snapshot, name: str, presence: Mapping[str, Presence]) -> Steps:
    """Stop one backend."""
    draft = Steps(snapshot, presence)
    draft.leave([name])
    if not draft.steps[-1].commands and not draft.refusals:
        draft.refusals.append(_no_command(snapshot.backends[name], "stop"))
    return draft


def restart_steps(
    snapshot: Snapshot, name: str, presence: Mapping[str, Presence], profile: str = "", notes: Iterable[str] = ()
) -> Steps:
    """Stop one backend and start it again, with the profile that it runs with."""
    draft = Steps(snapshot, presence, notes=list(notes))
    draft.look_ahead([name], {name: profile})
    draft.leave([name])
    draft.come([name], {name: profile}, [name])
    return draft


def beside(
    snapshot: Snapshot, name: str, presence: Mapping[str, Presence], current: str | None, profile: str = ""
) -> Snapshot:
    """A snapshot whose only mode holds the backend, with a profile, and those that run now: for a memory plan of a
    single start."""
    running = [other for other, seen in presence.items() if seen != "away" and not snapshot.backends[other].cloud]
    mode = snapshot.modes.get(current) if current is not None else None
    profiles = dict(mode.profiles) if mode is not None else {}
    profiles.pop(name, None)
    if profile:
        profiles[name] = profile
    return replace(snapshot, modes={_ALONE: Mode(_ALONE, tuple(dict.fromkeys([*running, name])), profiles)})


def usual_profile(snapshot: Snapshot, name: str, current: str | None) -> str:
    """The profile of a backend in the mode in force; "" = none."""
    mode = snapshot.modes.get(current) if current is not None else None
    return mode.profiles.get(name, "") if mode is not None else ""


def load_order(names: Iterable[str], plan: FleetPlan | str) -> list[str]:
    """The order in which the plan loads these: on every node the biggest first. Backends of no node keep their
    place."""
    left, ordered = list(names), []
    orders = [] if isinstance(plan, str) else [node.order for node in plan.nodes.values()]
    while left:
        first = next((name for name in left if not _waits(name, left, orders)), left[0])
        left.remove(first)
        ordered.append(first)
    return ordered


def _waits(name: str, left: list[str], orders: list[tuple[str, ...]]) -> bool:
    """Whether some node loads another one of `left` first."""
    return any(other in left for order in orders if name in order for other in order[: order.index(name)])


def _misfits(plan: FleetPlan | str) -> list[str]:
    if isinstance(plan, str):
        return [plan]
    return [f"{node.name}: {node.reason}" for node in plan.nodes.values() if node.fits == "no"]


def _no_command(backend: Backend, key: str) -> str:
    return (
        f"{backend.name} cannot be {'started' if key == 'start' else 'stopped'}: write `{key}` under "
        f"backends.{backend.name}, or a launch block and `ssh` under its nodes"
    )


def _unreached(backend: Backend, snapshot: Snapshot) -> str:
    """Why no preflight is possible."""
    if not backend.nodes:
        return "has no `node`"
    without = [name for name in backend.nodes if name not in snapshot.nodes or snapshot.nodes[name].ssh is None]
    return f"node {without[0]} has no `ssh`" if without else ""


def _unprobed(backend: Backend) -> str:
    return "is not probed (health.every: none)" if backend.health.every is None else ""


# -- planning, with files of models -----------------------------------------------------------------------------------


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
