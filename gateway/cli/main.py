"""`gateway COMMAND`. A command's module is imported only when that command runs, so `gateway --help` is quick."""

from __future__ import annotations

from importlib import import_module

import click

from gateway import __version__

# name → what it does. The module is `gateway.cli.<name>` and its click command is called `command`.
COMMANDS = {
    "serve": "Run the gateway in front of the fleet of routes.yaml.",
    "demo": "Run a simulated fleet and the gateway; nothing else is needed.",
    "check": "Say what is wrong or odd in routes.yaml, and where each alias leads.",
    "explain": "Print where a request to an alias would go, and why not elsewhere.",
    "probe": "Show with tiny real requests what the backends really do.",
    "usage": "Print who has used what: requests, tokens, seconds, USD.",
    "alerts": "Send a test message through every channel of `alerts`.",
    "schema": "Print the JSON schema of routes.yaml.",
    "sim": "Run one simulated backend.",
}


class LazyGroup(click.Group):
    """Knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"gateway.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gateway")
def cli() -> None:
    """One OpenAI-compatible URL in front of a fleet of DGX Sparks.

    Exit codes: 0 fine, 1 a problem was found, 2 wrong usage.
    """
