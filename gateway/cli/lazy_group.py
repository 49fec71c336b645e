"""A group of commands that knows their names, and imports a command when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

import click
from click.shell_completion import CompletionItem

from gateway.cli.options import refuse_unknown

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
