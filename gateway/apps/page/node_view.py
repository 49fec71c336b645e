"""The state of each machine of `nodes`, from its exporter and the backends on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gateway.config.snapshot import Node
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.health.nodes import Machine

_ANSWERING = frozenset({State.READY, State.BUSY, State.SUSPECT, State.DRAINING, State.MISCONFIGURED})

NodeState = Literal["up", "down", "unknown"]


def view_nodes(
    nodes: Mapping[str, Node], states: Mapping[str, BackendState], machines: Mapping[str, Machine]
) -> dict[str, dict[str, Any]]:
    """Node -> `{state, why, memory, backends, exporter, seen, memory_used, memory_total, temperature, power, gpu}`;
    memory in bytes, temperature in degrees Celsius, power in watts, gpu as a share, seen in Unix seconds; None if not
    known."""
    return {
        name: _view(node, [s for s in states.values() if name in s.backend.nodes], machines.get(name))
        for name, node in nodes.items()
    }


def _view(node: Node, backends: list[BackendState], machine: Machine | None) -> dict[str, Any]:
    state, why = _verdict(backends, machine)
    numbers = ("memory_used", "memory_total", "temperature", "power", "gpu")
    return {
        "state": state,
        "why": why,
        "memory": node.memory,
        "backends": [backend.name for backend in backends],
        "exporter": None if machine is None else machine.there,
        "seen": None if machine is None else round(machine.at, 3),
        **{name: getattr(machine, name, None) for name in numbers},
    }


def _verdict(backends: Sequence[BackendState], machine: Machine | None) -> tuple[NodeState, str]:
    """(state, why). One answering backend or exporter proves that it is up; it is down when all of them are."""
    answering = [b.name for b in backends if b.health.state in _ANSWERING]
    if machine is not None and machine.there:
        return "up", "its exporter answers"
    if answering:
        silent = "; its exporter does not" if machine is not None else ""
        return "up", f"{answering[0]} answers{silent}"
    gone = [b.name for b in backends if b.health.state is State.DOWN and b.backend.run == "always"]
    expected = [b.name for b in backends if b.backend.run == "always" and not b.health.set_aside]
    if machine is not None and len(gone) == len(expected):
        return "down", "its exporter does not answer" + (f", and {', '.join(gone)} is down" if gone else "")
    if expected and len(gone) == len(expected):
        return "down", f"{', '.join(gone)} is down"
    return "unknown", "nothing there was seen to answer yet"
