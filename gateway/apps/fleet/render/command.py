"""`gateway fleet render`: systemd units, launch scripts and a compose file for every node, from the launch blocks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gateway.apps.control.memory.model_files import read_models
from gateway.apps.control.memory.plan import weights_gib
from gateway.apps.fleet.lint.catalog import catalog_of
from gateway.apps.fleet.lint.findings import findings_of
from gateway.apps.fleet.render.files import RenderedFile, Rendering, compare, write_files
from gateway.apps.fleet.render.rendering import render
from gateway.apps.fleet.render.templates import BadTemplate, Templates
from gateway.apps.fleet.render.words import masked
from gateway.cli.options import config_option, counted, examples, fail, fail_with, json_option, load_or_exit
from gateway.config.load import LoadedFile
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Snapshot
from gateway.printable import visible


@examples(
    "gateway fleet render                        # which files there would be",
    "gateway fleet render --out ./fleet          # a folder per node, with its install.sh",
    "gateway fleet render --diff                 # beside what is installed on the nodes",
    "gateway fleet render --out ./fleet --profile ds4=latency",
    "gateway fleet render --out ./fleet --templates ./templates",
)
@click.command()
@config_option
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write the files below this directory.")
@click.option("--diff", "as_diff", is_flag=True, help="Compare with what is installed, here or over ssh.")
@click.option(
    "--profile",
    "chosen",
    multiple=True,
    metavar="BACKEND=NAME",
    help="The profile of a backend until the gateway chooses one.",
)
@click.option(
    "--templates",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Your own templates: files here replace shipped ones of the same name.",
)
@click.option(
    "--force",
    is_flag=True,
    help="With --out: also write over files that were changed by hand, and render launches with errors.",
)
@json_option
def command(
    config: Path,
    out: Path | None,
    as_diff: bool,
    chosen: tuple[str, ...],
    directory: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Turn launch blocks into what the nodes run: systemd units, launch scripts, compose files.

    A launch in which `gateway fleet check` finds an error is not rendered without --force. Secrets that are written out
    are masked in all output; files have them. Exit code 0: rendered, and (--diff) equal to what is installed; 1: a
    backend cannot be rendered, a template is wrong, a file was changed by hand and is left as
    it is, or --diff found a difference.
    """
    if out is not None and as_diff:
        raise click.UsageError("--out writes files and --diff compares with installed ones: use one of them")
    if force and out is None:
        raise click.UsageError("--force writes over files below --out: say which")
    profiles = dict(map(_profile, chosen))
    loaded = load_or_exit(config, as_json=as_json)
    snapshot = loaded.snapshot
    for name in profiles:
        if name not in snapshot.backends or snapshot.backends[name].launch is None:
            raise click.UsageError(f"--profile: no backend '{name}' with a launch block")
    try:
        weights = weights_gib(snapshot, catalog_of(snapshot).memory, read_models(snapshot))  # decide how long it starts
    except ConfigError as error:
        fail_with(error, as_json=as_json)
    try:
        refused = {} if force else _errors(loaded)
        rendering = render(snapshot, profiles, weights, Templates(directory), refused)
    except BadTemplate as error:
        if not as_json:
            fail(visible(str(error)))
        click.echo(json.dumps({"ok": False, "problems": [{"level": "error", "message": str(error)}]}, indent=2))
        sys.exit(1)
    fine = bool(rendering.files) and not any(note.severity == "error" for note in rendering.notes)
    if as_diff:
        fine = _compare(rendering, snapshot, as_json) and fine
    else:
        written = _write(rendering, out, force) if out else {}
        _list(rendering, written, as_json)
        edited = sum(state == "edited" for state in written.values())
        if edited:
            click.echo(
                f"{counted(edited, 'file')} changed by hand, left as they are: --force writes over them", err=True
            )
        fine = fine and not edited
    sys.exit(0 if fine else 1)


def _errors(loaded: LoadedFile) -> dict[str, str]:
    """Backend -> the first error that `gateway fleet check` finds in its launch."""
    found: dict[str, str] = {}
    for one in findings_of(loaded):
        if one.severity == "error" and one.path.startswith("backends.") and ".launch" in one.path:
            name = one.path.split(".launch")[0].removeprefix("backends.")
            message = f"`gateway fleet check` finds an error: {one.message} ({one.rule})"
            found.setdefault(name, f"{message}; --out DIR --force renders it all the same")
    return found


def _profile(text: str) -> tuple[str, str]:
    backend, equals, name = text.partition("=")
    if not (backend and equals and name):
        raise click.UsageError(f"--profile {text}: write BACKEND=NAME")
    return backend, name


def _write(rendering: Rendering, directory: Path, force: bool) -> dict[str, str]:
    """Place of each file -> what writing it changed. Exits 1 where one cannot be written."""
    try:
        return {file.place: state for file, state in write_files(rendering.files, directory, force)}
    except OSError as error:
        fail(f"cannot write '{error.filename or directory}': {error.strerror or error}")


def _list(rendering: Rendering, written: dict[str, str], as_json: bool) -> None:
    if as_json:
        files = [
            {**_file(file), "state": written.get(file.place), "text": masked(file.text, rendering.secrets)}
            for file in rendering.files
        ]
        _print_json(rendering, files)
        return
    rows = [
        (file.node, file.path, f"{file.mode:04o}", f"{len(file.text.encode()):,}", written.get(file.place, ""))
        for file in rendering.files
    ]
    _print_rows(rows)
    _print_notes(rendering)


def _compare(rendering: Rendering, snapshot: Snapshot, as_json: bool) -> bool:
    """Whether everything is installed as it would be rendered."""
    found = compare(rendering, snapshot.nodes)
    if as_json:
        states = ({"state": one.state, "reason": one.reason or None, "diff": one.diff or None} for one in found)
        _print_json(rendering, [{**_file(one.file), **state} for one, state in zip(found, states, strict=True)])
    else:
        for one in found:
            if one.diff:
                click.echo("\n".join(visible(line) for line in one.diff.splitlines()) + "\n")
        _print_rows([(one.file.node, one.file.path, one.state, visible(one.reason)) for one in found])
        _print_notes(rendering)
    return all(one.state == "same" for one in found)


def _file(file: RenderedFile) -> dict[str, Any]:
    return {"node": file.node, "path": file.path, "mode": f"{file.mode:04o}", "bytes": len(file.text.encode())}


def _print_json(rendering: Rendering, files: list[dict[str, Any]]) -> None:
    notes = [{"severity": n.severity, "path": n.path, "message": n.message} for n in rendering.notes]
    click.echo(json.dumps({"files": files, "notes": notes}, indent=2))


def _print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    for row in rows:
        click.echo("  ".join(cell for cell in row if cell))


def _print_notes(rendering: Rendering) -> None:
    if not rendering.files:
        click.echo("nothing to render: no backend has both a launch block and a node", err=True)
    for note in rendering.notes:
        click.echo(f"{note.severity}: {visible(note.path)}: {visible(note.message)}", err=True)
    errors = sum(note.severity == "error" for note in rendering.notes)
    if errors:
        click.echo(f"{counted(errors, 'backend')} not rendered", err=True)
