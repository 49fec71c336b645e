"""`gateway COMMAND`. The core's own are listed here, those of an app in `gateway/apps/<name>/__init__.py`, found by its
folder: name → summary, and where the click command is below that package. A command's module is imported only when that
command runs, so `gateway --help` is quick."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from pathlib import Path

import click

from gateway import __version__
from gateway.cli.lazy_group import CommandTable, LazyGroup

APPS = Path(__file__).parents[1] / "apps"
CORE: CommandTable = {
    "serve": ("Run the gateway in front of the fleet of routes.yaml.", "gateway.cli.serve:command"),
    "schema": ("Print the JSON schema of routes.yaml.", "gateway.cli.schema:command"),
    "completion": (
        "Print the script that makes a shell complete commands and names.",
        "gateway.cli.completion:command",
    ),
}
# The order of `gateway --help`: what a new user needs first.
FIRST = ("serve", "demo", "init", "import", "check", "explain", "probe", "bench", "top", "batch", "usage", "fleet")


@cache
def commands() -> CommandTable:
    """All commands, in the order of `gateway --help`."""
    found = dict(CORE)
    for path in sorted(APPS.glob("*/__init__.py")):
        package = f"gateway.apps.{path.parent.name}"
        table: CommandTable = getattr(import_module(package), "COMMANDS", {})
        found |= {name: (summary, f"{package}.{place}") for name, (summary, place) in table.items()}
    return {name: found[name] for name in (*FIRST, *found) if name in found}


@click.command(
    cls=LazyGroup,
    commands_of=commands,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="gateway")
@click.pass_context
def cli(context: click.Context) -> None:
    """One OpenAI-compatible URL in front of a fleet of DGX Sparks.

    Exit codes: 0 fine, 1 a problem was found, 2 wrong usage.
    """
    if os.environ.get("NO_COLOR"):  # rich reads it, click does not
        context.color = False
