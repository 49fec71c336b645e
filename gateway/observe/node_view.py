"""How each machine of `nodes` is, told from its exporter and from what runs there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from gateway.config.snapshot import Node
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.health.nodes import Machine

_THERE = frozenset({State.READY, State.BUSY, State.SUSPECT, State.DRAINING, State.MISCONFIGURED})
_GONE = frozenset({State.DOWN})

NodeState = Literal["up", "down", "unknown"]


def view_nodes(
    nodes: Mapping[str, Node], states: Mapping[str, BackendState], machines: Mapping[str, Machine]
) -> dict[str, dict[str, Any]]:
    """Node -> `{state, why, memory, backends, exporter, seen, memory_used, memory_total, temperature, power, gpu}`;
    bytes, degrees Celsius, watts, shares; None = not known."""
    return {
        name: _view(node, [s for s in states.values() if name in s.backend.nodes], machines.get(name))
        for name, node in nodes.items()
    }


def _view(node: Node, living: list[BackendState], machine: Machine | None) -> dict[str, Any]:
    state, why = verdict(living, machine)
    numbers = ("memory_used", "memory_total", "temperature", "power", "gpu")
    return {
        "state": state,
        "why": why,
        "memory": node.memory,
        "backends": [backend.name for backend in living],
        "exporter": None if machine is None else machine.there,
        "seen": None if machine is None else round(machine.at, 3),
        **{name: getattr(machine, name, None) for name in numbers},
    }


def verdict(living: Iterable[BackendState], machine: Machine | None) -> tuple[NodeState, str]:
    """(state, why). What answers there shows that it is up; that it is down is only said when all is gone."""
    backends = list(living)
    answering = [b.name for b in backends if b.health.state in _THERE]
    if machine is not None and machine.there:
        return "up", "its exporter answers"
    if answering:
        silent = "; its exporter does not" if machine is not None else ""
        return "up", f"{answering[0]} answers{silent}"
    gone = [b.name for b in backends if b.health.state in _GONE and b.backend.run == "always"]
    expected = [b.name for b in backends if b.backend.run == "always"]
    if machine is not None and len(gone) == len(expected):
        return "down", "its exporter does not answer" + (f", and {', '.join(gone)} is down" if gone else "")
    if expected and len(gone) == len(expected):
        return "down", f"{', '.join(gone)} is down"
    return "unknown", "nothing there was seen to answer yet"
