"""`gateway fleet COMMAND`: the Sparks behind the gateway. A command's module is imported only when it runs."""

from __future__ import annotations

from importlib import import_module

import click

from gateway.cli.lazy_group import LazyGroup
from gateway.cli.options import examples

# name → summary. The module is `gateway.cli.fleet_<name>`, its click command `command`.
COMMANDS: dict[str, str] = {
    "check": "What would go wrong with the engines, before they are started.",
    "plan": "Plan the memory of every node: does it fit, and in which order to load.",
    "render": "Write systemd units, launch scripts and a compose file for every node.",
    "preflight": "Show what would make a start fail on a node, and the command that mends it.",
    "switch": "Put another mode in force: stop what leaves, start what comes, wait until it serves.",
    "start": "Start one backend, and wait until it serves.",
    "stop": "Drain one backend, and stop it.",
    "status": "Show the mode in force, the operation under way, and the backends.",
}


def load_command(name: str) -> click.Command:
    """Import the module of this command and return the command."""
    command = import_module(f"gateway.cli.fleet_{name}").command
    assert isinstance(command, click.Command)
    return command


@examples(
    "gateway fleet check",
    "gateway fleet plan",
    "gateway fleet render --out units",
    "gateway fleet preflight",
    "gateway fleet switch ds4",
)
@click.group(cls=LazyGroup, summaries=COMMANDS, load=load_command)
def command() -> None:
    """The Sparks behind the gateway: what runs there, whether it fits, and how it is started."""
