"""Writes a generated routes.yaml: never over an existing file without --force, and only what the gateway would load."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gateway.apps.importing.draft import Draft
from gateway.apps.importing.render import render
from gateway.apps.importing.round_trip import RoundTripMismatch, verify_round_trip
from gateway.cli.options import fail, is_there
from gateway.config.loaded import Loaded
from gateway.config.problems import ConfigError

STDOUT = Path("-")


def output_options(command: click.decorators.FC) -> click.decorators.FC:
    """`-o FILE` and `--force`, given to the command as `output: Path` and `force: bool`."""
    output = click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
        default=Path("routes.yaml"),
        show_default=True,
        help="Where to write; - = to stdout.",
    )
    force = click.option("--force", is_flag=True, help="Replace the file if it exists.")
    return output(force(command))


def refuse_to_overwrite(output: Path, *, force: bool) -> None:
    """Raises UsageError when the file exists. Called before the work, and by `write`."""
    if output != STDOUT and is_there(output) and not force:
        raise click.UsageError(f"'{output}' exists already: replace it with --force, or write elsewhere with -o FILE")


def write(text: str, output: Path, *, force: bool) -> None:
    """Write the file atomically, so that a gateway that watches it never reads a part."""
    if output == STDOUT:
        click.echo(text, nl=False)
        return
    aside = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        aside.write_text(text, "utf-8")
        if force:
            aside.replace(output)
        else:
            os.link(aside, output)  # fails if the file was created meanwhile
            aside.unlink()
    except FileExistsError:
        aside.unlink(missing_ok=True)
        refuse_to_overwrite(output, force=False)
    except OSError as error:
        aside.unlink(missing_ok=True)
        fail(f"cannot write '{output}': {error.strerror or error}")


def render_and_verify(draft: Draft, output: Path) -> tuple[str, Loaded]:
    """(the file's text, the loaded file). Exits 1 when the gateway would not load it."""
    text = render(draft)
    name = "routes.yaml" if output == STDOUT else str(output)
    try:
        return text, verify_round_trip(text, draft, os.environ, name)
    except ConfigError as error:
        click.echo(str(error), err=True)
        fail("the gateway would not load this file; nothing is written")
    except RoundTripMismatch as error:
        fail(f"{error}; nothing is written")
