"""`gateway fleet COMMAND`: the Sparks behind the gateway."""

from __future__ import annotations

import click

from gateway.cli.main import CommandTable, LazyGroup
from gateway.cli.options import examples

_HERE = "gateway.apps.fleet"
COMMANDS: CommandTable = {
    "check": ("What would go wrong with the engines, before they are started.", f"{_HERE}.lint.findings:command"),
    "plan": (
        "Plan the memory of every node: does it fit, and in which order to load.",
        f"{_HERE}.planning:command",
    ),
    "learn": (
        "Write what engines said of their memory into routes.yaml, where the plan reads it.",
        f"{_HERE}.learning.command:command",
    ),
    "pull": ("Put the weights and the image of a backend onto its nodes.", f"{_HERE}.pulling.pull:command"),
    "render": (
        "Write systemd units, launch scripts and a compose file for every node.",
        f"{_HERE}.render.command:command",
    ),
    "preflight": (
        "Show what would make a start fail on a node, and the command that mends it.",
        f"{_HERE}.preflight.command:command",
    ),
    "switch": (
        "Put another mode in force: stop what leaves, start what comes, wait until it serves.",
        f"{_HERE}.operations:switch",
    ),
    "start": ("Start one backend, and wait until it serves.", f"{_HERE}.operations:start"),
    "stop": ("Drain one backend, and stop it.", f"{_HERE}.operations:stop"),
    "restart": ("Stop one backend, and start it again.", f"{_HERE}.operations:restart"),
    "logs": ("Show the log of an engine.", f"{_HERE}.operations:logs"),
    "cancel": ("End the operation under way.", f"{_HERE}.operations:cancel"),
    "status": (
        "Show the mode in force, the operation under way, and the backends.",
        f"{_HERE}.operations:status",
    ),
}


@examples(
    "gateway fleet check",
    "gateway fleet plan",
    "gateway fleet render --out units",
    "gateway fleet preflight",
    "gateway fleet switch ds4",
)
@click.group(cls=LazyGroup, commands_of=lambda: COMMANDS)
def command() -> None:
    """The Sparks behind the gateway: what runs there, whether it fits, and how it is started."""
