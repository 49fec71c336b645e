"""Whether a request may have a parked backend started, and which others are stopped for it. Pure.

A backend is started beside what runs and what the mode in force expects. Where that leaves too little memory, backends
that only requests start give way: those that are idle and have run for `min_run`, the longest idle first. Memory has to
be free twice: by the plan, and by what the node's exporter reports now, because engines take more while they start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.domain.health_state import StartDecision

if TYPE_CHECKING:
    from gateway.apps.control.memory.arithmetic import Demand


@dataclass(frozen=True, slots=True)
class StartMember:
    """A backend of the fleet as it is now. Times are seconds of the caller's clock.

    `there`: it runs or starts; `expected`: it is to run, whether it is there or not (the mode in force contains it, or
    without modes `run: always`). `on_request`: only requests start it. `idle_since` None if it has work, or starts.
    `ran_since`: when it became ready. `unstoppable`: why it cannot be stopped, empty = it can."""

    name: str
    nodes: tuple[str, ...] = ()
    there: bool = False
    expected: bool = False
    on_request: bool = False
    idle_since: float | None = None
    ran_since: float = 0.0
    min_run: float = 0.0
    unstoppable: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """The memory of one node in GiB, None if not known. `free`: as its exporter reports it now. `demands`: backend ->
    its demand on this node. `reserve`: what is not free when the node has booted."""

    memory: float | None = None
    free: float | None = None
    demands: Mapping[str, Demand] = field(default_factory=dict)
    reserve: float = 3.6  # `SYSTEM_GIB` of the planner, which serving has no use for


def decide(
    name: str, members: Mapping[str, StartMember], rooms: Mapping[str, Room], now: float, *, may_stop: bool = True
) -> StartDecision:
    """Whether the backend `name` is started now. `rooms`: by node. `may_stop`: others may be stopped for it."""
    target = members[name]
    if not target.nodes:
        return StartDecision(notes=(f"{name} has no `node`: the memory plan has no say in its start",))
    beside = {
        other.name: other
        for other in members.values()
        if other is not target and (other.there or other.expected) and set(other.nodes) & set(target.nodes)
    }
    missing = _missing(target, beside, rooms, ())
    if not missing:
        return StartDecision(notes=_notes(target, rooms))
    order = sorted((m for m in beside.values() if not _stays(m, now)), key=lambda member: member.idle_since or 0.0)
    if not may_stop or not order:
        return _refused(missing, beside, now, may_stop=may_stop)
    stops: list[StartMember] = []
    for member in order:
        stops.append(member)
        if not _missing(target, beside, rooms, stops):
            break
    else:
        return _refused(_missing(target, beside, rooms, stops), beside, now, may_stop=True)
    for member in reversed(stops[:-1]):  # the most recently used first: it is spared if the others are enough
        fewer = [other for other in stops if other is not member]
        if not _missing(target, beside, rooms, fewer):
            stops = fewer
    return StartDecision(stops={m.name: now - (m.idle_since or now) for m in stops}, notes=_notes(target, rooms))


def _missing(
    target: StartMember, beside: Mapping[str, StartMember], rooms: Mapping[str, Room], stopped: Sequence[StartMember]
) -> str:
    """The reason why the target cannot start when these are stopped; empty if it can."""
    gone = {member.name for member in stopped}
    for node in target.nodes:
        others = [m for m in beside.values() if node in m.nodes and m.name not in gone]
        why = _missing_on(node, target.name, others, rooms.get(node, Room()), gone)
        if why:
            return why
    return ""


def _missing_on(node: str, name: str, others: Sequence[StartMember], room: Room, gone: set[str]) -> str:
    from gateway.apps.control.memory.arithmetic import Demand

    demand = room.demands.get(name, Demand(name, verdict="unknown"))
    if demand.verdict == "no":
        return f"it cannot start on {node}: {demand.reason}"
    needs = _most(demand)
    if needs is None:
        return f"what it holds is not known, and others run on {node}: write launch.resident" if others else ""
    if room.free is not None:
        free = room.free + sum(_held(room, other) or 0.0 for other in gone)
        if needs > free:
            return f"it needs {needs:.1f} GiB on {node}, and {free:.1f} are free there now"
    if room.memory is None:
        unknown = f"nothing says how much memory {node} has (nodes.{node}.memory)"
        return unknown if others and room.free is None else ""
    taken = [_taken(room, other) for other in others]
    unknown_ones = [other.name for other, held in zip(others, taken, strict=True) if held is None]
    if unknown_ones and room.free is None:
        return f"what {', '.join(unknown_ones)} holds on {node} is not known: write launch.resident"
    left = room.memory - room.reserve - sum(held or 0.0 for held in taken)
    beside = f" beside {', '.join(other.name for other in others)}" if others else ""
    return f"it needs {needs:.1f} GiB on {node}, and {max(left, 0.0):.1f} are free{beside}" if needs > left else ""


def _most(demand: Demand) -> float | None:
    """GiB that it takes at its start or later, whichever is more; None if not known."""
    known = [amount for amount in (demand.needs, demand.held) if amount is not None]
    return max(known, default=None)


def _held(room: Room, name: str) -> float | None:
    return room.demands[name].held if name in room.demands else None


def _taken(room: Room, member: StartMember) -> float | None:
    """GiB kept for another backend: those it holds, or those it needs to start if it is expected and away; None if not
    known. A backend that the memory plan leaves out (a speech server that nobody has measured) counts as nothing."""
    demand = room.demands.get(member.name)
    if demand is None:
        return 0.0
    return demand.held if member.there else _most(demand)


def _stays(member: StartMember, now: float) -> str:
    """Why this backend is not stopped for another one; empty = it is."""
    if not member.on_request or member.expected or not member.there:
        return "stays"
    if member.unstoppable:
        return member.unstoppable
    if member.idle_since is None:
        return "has work"
    return f"runs for less than its min_run ({member.min_run:g} s)" if now - member.ran_since < member.min_run else ""


def _refused(missing: str, beside: Mapping[str, StartMember], now: float, *, may_stop: bool) -> StartDecision:
    """Why nothing gives way, with the time after which a young backend may."""
    others = [member for member in beside.values() if member.on_request and member.there and not member.expected]
    if not may_stop:
        idle = [member.name for member in others if not _stays(member, now)]
        return StartDecision(missing + (f"; a batch request does not have {', '.join(idle)} stopped" if idle else ""))
    reasons = [f"{member.name} {why}" for member in others if (why := _stays(member, now))]
    young = [
        member.ran_since + member.min_run - now
        for member in others
        if member.idle_since is not None and now - member.ran_since < member.min_run
    ]
    return StartDecision("; ".join([missing, *reasons]), wait=min(young, default=None))


def _notes(target: StartMember, rooms: Mapping[str, Room]) -> tuple[str, ...]:
    unseen = [node for node in target.nodes if rooms.get(node, Room()).free is None]
    return (f"fits on paper: nothing tells how much memory is free on {', '.join(unseen)} now",) if unseen else ()
