"""`gateway completion`: the script that makes a shell complete commands, options and the names in routes.yaml."""

from __future__ import annotations

import click

from gateway.cli.options import examples

_SHELLS = ("bash", "zsh", "fish")


@examples(
    "gateway completion bash > ~/.local/share/bash-completion/completions/gateway",
    "gateway completion zsh > ~/.zfunc/_gateway   # with fpath+=~/.zfunc before compinit",
    "gateway completion fish > ~/.config/fish/completions/gateway.fish",
)
@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    Aliases, backends and clients complete from routes.yaml in the current directory (or --config).
    """
    from click.shell_completion import get_completion_class

    from gateway.cli.main import cli

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(cli, {}, "gateway", "_GATEWAY_COMPLETE").source(), nl=False)
