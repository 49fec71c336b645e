"""`gateway fleet check`: what would go wrong with the engines, before they are started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gateway.apps.control.memory.model_files import read_models
from gateway.apps.fleet.lint.catalog import catalog_of
from gateway.apps.fleet.lint.findings import findings
from gateway.apps.fleet.lint.rules_routes import MODE_CONFLICT
from gateway.apps.fleet.lint.subject import Finding
from gateway.cli.options import config_option, counted, examples, fail_with, json_option, load_or_exit
from gateway.config.load import LoadedFile
from gateway.config.problems import ConfigError

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")  # Docker's, Podman's
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


@examples(
    "gateway fleet check",
    "gateway fleet check --config new.yaml --json",
)
@click.command()
@config_option
@json_option
def command(config: Path, as_json: bool) -> None:
    """Look through every launch block, and through what is declared without one.

    Each finding says why, what to write instead, and who paid for it. An error is what cannot start or cannot call
    tools. Exit code 0: no error; 1: an error, or the file has a mistake; 2: there is no such file.
    """
    loaded = load_or_exit(config, as_json=as_json)
    try:
        found = findings_of(loaded)
    except ConfigError as error:
        fail_with(error, as_json=as_json)
    if as_json:
        click.echo(json.dumps({"findings": [one.as_json() for one in found]}, indent=2))
    else:
        print_findings(found)
        click.echo(_sum(found))
    sys.exit(1 if any(one.severity == "error" for one in found) else 0)


def findings_of(loaded: LoadedFile) -> list[Finding]:
    """The findings of a file, with the catalogue it names. Raises ConfigError for mistakes in that catalogue."""
    snapshot = loaded.snapshot
    catalog, files = catalog_of(snapshot), read_models(snapshot)
    in_container = any(Path(mark).exists() for mark in _CONTAINER_MARKS)
    return findings(snapshot, catalog, loaded.lines, in_container=in_container, files=files)


def mode_cannot_run(found: list[Finding]) -> bool:
    """Whether a mode of the file holds backends that do not fit into one node together."""
    return any(one.rule == MODE_CONFLICT for one in found)


def print_findings(found: list[Finding]) -> None:
    """Each with its severity in colour; colours are left out where the output is no terminal."""
    for one in found:
        severity, _, rest = str(one).partition("  ")
        click.echo(f"{click.style(severity, fg=_COLOURS[severity], bold=True)}  {rest}\n")


def _sum(found: list[Finding]) -> str:
    kinds = [counted(n, kind) for kind in _COLOURS if (n := sum(one.severity == kind for one in found))]
    return ", ".join(kinds) if kinds else "nothing found"
