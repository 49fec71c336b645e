"""`gateway COMMAND`. A command's module is imported only when that command runs, so `gateway --help` is quick."""

from __future__ import annotations

import os
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from gateway import __version__
from gateway.cli.options import refuse_unknown

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


class LazyGroup(click.Group):
    """Has the names of its commands, and imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(ctx, args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gateway")
@click.pass_context
def cli(context: click.Context) -> None:
    """One OpenAI-compatible URL in front of a fleet of DGX Sparks.

    Exit codes: 0 fine, 1 a problem was found, 2 wrong usage.
    """
    if os.environ.get("NO_COLOR"):  # rich reads it, click does not
        context.color = False
