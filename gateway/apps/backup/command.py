"""`gateway backup`: everything that the gateway keeps on its disk, in one file."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import click

from gateway.apps.backup.archive import write_archive
from gateway.cli.options import config_option, counted, end_with, examples, fail, is_there, json_option, load_or_exit


@examples(
    "gateway backup gateway.tar.gz",
    'gateway backup "/srv/backups/gateway-$(date +%F).tar.gz"',
)
@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@config_option
@json_option
def command(file: Path, config: Path, as_json: bool) -> None:
    """Write the directory `server.data` into FILE (tar, gzip), also while the gateway runs.

    How to restore it: docs/operating.md. FILE has prompts and answers, and only its owner may read it.

    Exit code 0: written; 1: nothing was written, or a database is damaged and was copied as it lies there; 2: wrong
    usage.
    """
    server = load_or_exit(config, as_json=as_json).snapshot.server
    data = Path(server.data)
    if not (is_there(data) and data.is_dir()):
        fail(f"there is no directory {data.absolute()} (`server.data`): run this where the gateway runs")
    if is_there(file):
        raise click.UsageError(f"'{file}' exists: name another file, or delete it")
    if data.resolve() in file.resolve().parents:
        raise click.UsageError(f"'{file}' is in `server.data` itself: name a file elsewhere")
    try:
        contents = write_archive(data, file)
    except (OSError, sqlite3.Error) as error:
        end_with(error, as_json=as_json)
    if as_json:
        told = {"ok": not contents.damaged, "file": str(file.absolute()), "bytes": file.stat().st_size}
        click.echo(json.dumps({**told, **vars(contents)}, indent=2))
    else:
        parts = ", ".join([*contents.databases, counted(contents.files, "file")])
        click.echo(f"{file}: {file.stat().st_size:,} bytes: {parts}")
        for name, why in contents.damaged.items():
            click.echo(f"{data / name} is damaged and was copied as it lies there: {why}", err=True)
        if server.shared:
            click.echo("Files and batches are in Redis (`server.shared`), and not in this file.", err=True)
    if contents.damaged:
        raise SystemExit(1)
