"""`gateway COMMAND`. A command's module is imported only when that command runs, so `gateway --help` is quick."""

from __future__ import annotations

import os
from importlib import import_module

import click

from gateway import __version__
from gateway.cli.lazy_group import LazyGroup

# name → summary. The module is `gateway.cli.<name>` (MODULES has the exceptions), its click command `command`.
COMMANDS = {
    "serve": "Run the gateway in front of the fleet of routes.yaml.",
    "demo": "Run a simulated fleet and the gateway; nothing else is needed.",
    "init": "Discover running servers and write a routes.yaml for them.",
    "import": "Convert another gateway's config, a unit, compose file or script to a routes.yaml.",
    "check": "Check routes.yaml, and show where each alias leads.",
    "explain": "Show where a request to an alias would go, and why not elsewhere.",
    "probe": "Show with tiny real requests what the backends do.",
    "bench": "Measure how fast an alias or a server is, and what the gateway adds.",
    "top": "Show the fleet in a terminal: states, slots, queues, who answers, what happened.",
    "batch": "Run many requests from a file, and compare what several judges say.",
    "usage": "Show who has used what: requests, tokens, seconds, USD.",
    "fleet": "Check, plan and render what runs on the Sparks.",
    "alerts": "Send a test message through every channel of `alerts`.",
    "schema": "Print the JSON schema of routes.yaml.",
    "completion": "Print the script that makes a shell complete commands and names.",
    "sim": "Run one simulated backend, or start and stop those of the demo.",
}
MODULES = {"import": "import_"}  # a reserved word of Python


def load_command(name: str) -> click.Command:
    """Import the module of this command and return the command."""
    command = import_module(f"gateway.cli.{MODULES.get(name, name)}").command
    assert isinstance(command, click.Command)
    return command


@click.command(
    cls=LazyGroup,
    summaries=COMMANDS,
    load=load_command,
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
