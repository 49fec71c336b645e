"""`gateway COMMAND`. The core's own are listed here, those of an app in `gateway/apps/<name>/__init__.py`, found by its
folder: name → summary, and where the click command is below that package. A command's module is imported only when that
command runs, so `gateway --help` is quick."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
from click.shell_completion import CompletionItem

from gateway import __version__
from gateway.cli.options import examples, refuse_unknown

CommandTable = Mapping[str, tuple[str, str]]  # name → summary, and `module:attribute` where the click command is


class LazyGroup(click.Group):
    """`commands_of` tells the commands when they are asked for."""

    def __init__(self, *args: Any, commands_of: Callable[[], CommandTable], **options: Any) -> None:
        super().__init__(*args, **options)
        self._commands_of = commands_of

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_of())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.load(cmd_name) if cmd_name in self._commands_of() else None

    def load(self, name: str) -> click.Command:
        """Import the module of this command and return the command."""
        command = resolve_name(self._commands_of()[name][1])
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(ctx, args[0], self._commands_of())
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as missing:
            if not (missing.name or "").startswith("gateway.apps"):
                raise
            lacks = f"this gateway is installed without {missing.name}, which the command uses"
            raise click.UsageError(lacks) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (summary, _) in self._commands_of().items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = self._commands_of().items()
        found = [CompletionItem(name, help=summary) for name, (summary, _) in commands if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


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
