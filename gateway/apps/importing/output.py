"""Writes a generated routes.yaml: never over an existing file without --force, and only what the gateway would load."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from gateway.apps.importing.draft import Draft
from gateway.apps.importing.render import SCHEMA, render
from gateway.apps.importing.source_values import variable_name
from gateway.cli.options import fail, is_there
from gateway.config.document import read_document
from gateway.config.load import LoadedFile, load_text
from gateway.config.problems import ConfigError, Report
from gateway.config.schema import schema_text

_REFERENCE = re.compile(r"(?<!\$)\$\{([A-Za-z_]\w*)\}", re.ASCII)
_FILE = re.compile(r"(?<!\$)\$\{file:([^{}]*)\}")
_STAND_IN_URL = "http://127.0.0.1:9"


class RoundTripMismatch(Exception):
    """The text does not mean the same as the draft. A defect of the writer; nothing may be written then."""


def variables(text: str) -> list[str]:
    """The names of all `${NAME}` in the text's values, in order; launch blocks keep theirs for the engine's machine."""
    report = Report("routes.yaml")
    return list(dict.fromkeys(_named(_without_launches(read_document(text, report)))))


def verify_round_trip(text: str, draft: Draft, environ: Mapping[str, str], source: str = "routes.yaml") -> LoadedFile:
    """`text` as the gateway loads it. Variables that `environ` lacks, and files of secrets (which may be on another
    machine), get a stand-in.

    Raises ConfigError when it would not be loaded, RoundTripMismatch when it differs from the draft.
    """
    report = Report(source)
    read = read_document(text, report)
    report.finish()
    if read != draft.data():
        raise RoundTripMismatch(f"{source} would not say what was meant: {_difference(read, draft.data())}")
    stand_ins = {name: _stand_in(name, draft) for name in variables(text) if not environ.get(name)}
    without_files = _FILE.sub(lambda match: f"stands-for-{variable_name(match[1])}", text)
    return load_text(without_files, source, {**environ, **stand_ins})


def _stand_in(name: str, draft: Draft) -> str:
    """A URL where the variable is a backend's URL, else text that is unique to the variable."""
    in_url = any(f"${{{name}}}" == entry.keys.get("url") for entry in draft.backends.values())
    return _STAND_IN_URL if in_url else f"stands-for-{name}"


def _without_launches(data: Any) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get("backends"), dict):
        return data
    backends = data["backends"].items()
    kept = {name: {k: v for k, v in b.items() if k != "launch"} if isinstance(b, dict) else b for name, b in backends}
    return {**data, "backends": kept}


def _named(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [name for inner in value.values() for name in _named(inner)]
    if isinstance(value, list):
        return [name for inner in value for name in _named(inner)]
    return _REFERENCE.findall(value) if isinstance(value, str) else []


def _difference(read: Any, meant: Any, path: str = "") -> str:
    """The first path at which the two differ."""
    if isinstance(read, dict) and isinstance(meant, dict):
        for key in [*meant, *(key for key in read if key not in meant)]:
            if read.get(key) != meant.get(key):
                return _difference(read.get(key), meant.get(key), f"{path}.{key}")
    return path.removeprefix(".") or "its top level"


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
    """Write the file atomically, so that a gateway that watches it never reads a part; and the schema that its first
    line names, where there is none beside it."""
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
    with suppress(OSError), output.with_name(SCHEMA).open("x", encoding="utf-8") as schema:
        schema.write(schema_text())


def render_and_verify(draft: Draft, output: Path) -> tuple[str, LoadedFile]:
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
