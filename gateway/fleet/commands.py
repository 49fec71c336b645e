"""The commands that start and stop a backend: those of routes.yaml, or systemd over the ssh of its nodes. Pure.

A command is an argument vector: no shell reads it unless the operator wrote `sh -c`, and nothing in it comes from a
client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config.snapshot import Backend, Node
from gateway.fleet.render.launches import unit_name
from gateway.fleet.ssh import SSH
from gateway.launch.words import split


@dataclass(frozen=True, slots=True)
class Command:
    """`shown` names the command for people. A line of the operator's own may hold a secret, so only its key is
    shown."""

    argv: tuple[str, ...]
    shown: str


def start_commands(backend: Backend, nodes: Mapping[str, Node]) -> tuple[Command, ...]:
    """What starts the backend, in this order: of an engine over several nodes the workers first, then the head. Empty =
    no command is known."""
    if backend.start is not None:
        return (_written(backend.name, "start", backend.start),)
    return _units(backend, nodes, ("start", "--no-block"), backend.nodes[:0:-1] + backend.nodes[:1])


def stop_commands(backend: Backend, nodes: Mapping[str, Node]) -> tuple[Command, ...]:
    """What stops the backend, and has ended when it is stopped: the head first. Empty = no command is known."""
    if backend.stop is not None:
        return (_written(backend.name, "stop", backend.stop),)
    return _units(backend, nodes, ("stop",), backend.nodes)


def journal_of(backend: Backend, nodes: Mapping[str, Node]) -> str:
    """The command that shows why the rendered unit does not start; empty where another command starts the backend."""
    if backend.start is not None or not start_commands(backend, nodes):
        return ""
    return f"ssh {nodes[backend.nodes[0]].ssh} journalctl -u {unit_name(backend.name)} -n 50"


def _written(backend: str, key: str, line: str) -> Command:
    return Command(split(line).words, f"backends.{backend}.{key}")


def _units(
    backend: Backend, nodes: Mapping[str, Node], verb: tuple[str, ...], order: tuple[str, ...]
) -> tuple[Command, ...]:
    """The unit that `gateway fleet render` writes, on each of these nodes. Empty where there is no such unit, or a node
    has no `ssh`: half an engine is never started."""
    targets = [nodes[name].ssh if name in nodes else None for name in order]
    if backend.launch is None or not all(targets):
        return ()
    words = ("sudo", "systemctl", *verb, unit_name(backend.name))
    return tuple(
        Command((*SSH, str(target), *words), f"ssh {target} sudo systemctl {verb[0]} {words[-1]}") for target in targets
    )
