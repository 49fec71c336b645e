"""A group of commands that knows their names, and imports a command when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from gateway.cli.options import refuse_unknown


class LazyGroup(click.Group):
    """`summaries`: name → summary of each command. `load` imports the command of that name."""

    def __init__(
        self, *args: Any, summaries: Mapping[str, str], load: Callable[[str], click.Command], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._summaries = summaries
        self._load = load

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._load(cmd_name) if cmd_name in self._summaries else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(ctx, args[0], self._summaries)
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
            formatter.write_dl(list(self._summaries.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self._summaries if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self._summaries[name]) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]
