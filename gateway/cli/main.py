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
from gateway.cli.options import examples

APPS = Path(__file__).parents[1] / "apps"
CORE: CommandTable = {
    "serve": ("Run the gateway in front of the fleet of routes.yaml.", "gateway.cli.serve:command"),
    "schema": ("Print the JSON schema of routes.yaml.", "gateway.cli.main:schema"),
    "completion": (
        "Print the script that makes a shell complete commands and names.",
        "gateway.cli.main:completion",
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


@examples("gateway schema > routes.schema.json")
@click.command()
def schema() -> None:
    """Print the JSON schema of routes.yaml."""
    from gateway.config.schema import schema_text

    click.echo(schema_text(), nl=False)


@examples(
    "gateway completion bash > ~/.local/share/bash-completion/completions/gateway",
    "gateway completion zsh > ~/.zfunc/_gateway   # with fpath+=~/.zfunc before compinit",
    "gateway completion fish > ~/.config/fish/completions/gateway.fish",
)
@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    Aliases, backends and clients complete from routes.yaml in the current directory (or --config).
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, "gateway", "_GATEWAY_COMPLETE").source(), nl=False)
