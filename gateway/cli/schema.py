"""`gateway schema`: the JSON schema of routes.yaml, for editors."""

from __future__ import annotations

import click

from gateway.cli.options import examples


@examples("gateway schema > routes.schema.json")
@click.command()
def command() -> None:
    """Print the JSON schema of routes.yaml."""
    from gateway.config.schema import schema_text

    click.echo(schema_text(), nl=False)
