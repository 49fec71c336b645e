"""The steps of a switch from one mode to another, and of a start or stop of one backend. Pure.

First the backends that leave are drained and stopped, then those that come are started one after the other, in the
memory plan's order: an engine takes more memory while it starts than it keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gateway.config.snapshot import Backend, Mode, Snapshot
from gateway.fleet.commands import Command, journal_of, start_commands, stop_commands
from gateway.fleet.memory.plan import FleetPlan

What = Literal["drain", "stop", "preflight", "start", "wait", "resume"]
Presence = Literal["up", "drained", "away"]
"""Of a backend: it serves, it answers but gets no requests, or it does not answer or was not checked yet."""

_ALONE = "start"  # the name of the mode that stands for one backend beside those that run


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """`commands`: what is run. `skip`: why there is nothing to do. `journal`: a command that shows why it failed."""

    backend: str
    what: What
    commands: tuple[Command, ...] = ()
    skip: str = ""
    journal: str = ""


@dataclass(frozen=True, slots=True)
class Steps:
    """`refusals`: why it must not begin, unless it is forced. `notes`: what the operator should know."""

    steps: tuple[PlannedStep, ...]
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    """Steps in the making."""

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
            self.steps.append(PlannedStep(backend.name, "stop", commands, skip))

    def come(self, names: Iterable[str]) -> None:
        """Start one after the other."""
        for backend in (self.snapshot.backends[name] for name in names):
            commands = start_commands(backend, self.snapshot.nodes)
            journal = journal_of(backend, self.snapshot.nodes)
            if not commands:
                self.refusals.append(_no_command(backend, "start"))
            self.steps += [
                PlannedStep(backend.name, "preflight", skip=_unreached(backend, self.snapshot)),
                PlannedStep(backend.name, "start", commands, "" if commands else "no `start` command"),
                PlannedStep(backend.name, "wait", skip=_unprobed(backend), journal=journal),
                PlannedStep(backend.name, "resume"),
            ]

    def resume(self, names: Iterable[str]) -> None:
        """Let requests go again to what answers."""
        for backend in (self.snapshot.backends[name] for name in names):
            self.steps += [
                PlannedStep(backend.name, "resume"),
                PlannedStep(backend.name, "wait", skip=_unprobed(backend)),
            ]

    def finished(self) -> Steps:
        return Steps(tuple(self.steps), tuple(self.refusals), tuple(self.notes))


def switch_steps(
    snapshot: Snapshot, target: str, current: str | None, presence: Mapping[str, Presence], plan: FleetPlan | str
) -> Steps:
    """From the mode `current` (None = not known) to `target`. `plan`: the memory plan of the target, or why there is
    none. Backends that are in no mode, and clouds, are left alone."""
    modes = snapshot.modes
    mode, before = modes[target], modes.get(current) if current is not None else None
    draft = _Draft(snapshot, presence, refusals=_misfits(plan))
    again = [name for name in mode.backends if before is not None and _changed(name, before, mode)]
    leaving = [name for name in snapshot.backends if _leaves(name, snapshot, mode, before, presence)]
    coming = [name for name in mode.backends if presence.get(name, "away") == "away" or name in again]
    draft.notes += [
        _rendered(name, mode.profiles.get(name)) for name in coming if _is_rendered_anew(name, before, mode)
    ]
    draft.leave([*leaving, *again])
    draft.come(load_order(coming, plan))
    draft.resume(name for name in mode.backends if presence.get(name) == "drained" and name not in coming)
    return draft.finished()


def start_steps(snapshot: Snapshot, name: str, presence: Mapping[str, Presence], plan: FleetPlan | str) -> Steps:
    """Start one backend. `plan`: the memory plan of `beside`."""
    draft = _Draft(snapshot, presence, refusals=_misfits(plan))
    if presence.get(name, "away") == "away":
        draft.come([name])
    else:
        draft.notes.append(f"{name} runs already")
        draft.resume([name])
    return draft.finished()


def request_steps(snapshot: Snapshot, name: str, stops: Iterable[str], notes: Iterable[str]) -> Steps:
    """Start one backend for a request, after these were stopped for it."""
    draft = _Draft(snapshot, {}, notes=list(notes))
    draft.leave(stops)
    draft.come([name])
    return draft.finished()


def stop_steps(snapshot: Snapshot, name: str, presence: Mapping[str, Presence]) -> Steps:
    """Stop one backend."""
    draft = _Draft(snapshot, presence)
    draft.leave([name])
    if not draft.steps[-1].commands and not draft.refusals:
        draft.refusals.append(_no_command(snapshot.backends[name], "stop"))
    return draft.finished()


def beside(snapshot: Snapshot, name: str, presence: Mapping[str, Presence], current: str | None) -> Snapshot:
    """A snapshot whose only mode holds the backend and those that run now: for a memory plan of a single start."""
    running = [other for other, seen in presence.items() if seen != "away" and not snapshot.backends[other].cloud]
    mode = snapshot.modes.get(current) if current is not None else None
    profiles = mode.profiles if mode is not None else {}
    return replace(snapshot, modes={_ALONE: Mode(_ALONE, tuple(dict.fromkeys([*running, name])), profiles)})


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


def _leaves(name: str, snapshot: Snapshot, mode: Mode, before: Mode | None, presence: Mapping[str, Presence]) -> bool:
    """Whether the backend is no part of the target, and belongs to the mode in force, is left from another one, or was
    started for a request."""
    if name in mode.backends:
        return False
    if before is not None and name in before.backends:
        return True
    if snapshot.backends[name].run == "on_request":  # the target's memory plan does not count it
        return presence.get(name, "away") != "away"
    return presence.get(name, "away") != "away" and any(name in other.backends for other in snapshot.modes.values())


def _changed(name: str, before: Mode, mode: Mode) -> bool:
    """Whether a backend of both modes runs with another profile."""
    return name in before.backends and before.profiles.get(name) != mode.profiles.get(name)


def _is_rendered_anew(name: str, before: Mode | None, mode: Mode) -> bool:
    """Whether the unit on the node may be that of another profile."""
    return name in mode.profiles or (before is not None and _changed(name, before, mode))


def _rendered(name: str, profile: str | None) -> str:
    if profile is None:
        return f"{name} runs without a profile again: its unit must be the one of `gateway fleet render`"
    return f"{name} runs with profile {profile}: its unit must be {how_to_render(name, profile)}"


def how_to_render(name: str, profile: str) -> str:
    """What to render and install so that a backend starts with a profile."""
    return f"the one of `gateway fleet render --out DIR --profile {name}={profile}`, installed on its nodes"


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
