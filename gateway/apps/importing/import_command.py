"""`gateway import`: converts another gateway's configuration, or what starts engines, to a routes.yaml, with a note for
every difference."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from gateway.apps.importing import (
    compose,
    kubernetes,
    litellm,
    llama_swap,
    olla,
    shell_script,
    sparkrun,
    systemd,
    vllm_recipe,
)
from gateway.apps.importing.draft import Draft, ImportNote
from gateway.apps.importing.kubernetes import documents
from gateway.apps.importing.output import (
    STDOUT,
    deliver,
    output_options,
    refuse_to_overwrite,
    render,
    render_and_verify,
    variables,
)
from gateway.apps.importing.source import SourceFile, data_of, mapping
from gateway.cli.options import counted, examples, fail_with, is_host, is_there, json_option, problem_json
from gateway.config.load import LoadedFile
from gateway.config.problems import ConfigError
from gateway.config.sources import read_file
from gateway.printable import visible

FORMATS: Mapping[str, Callable[[SourceFile], Draft]] = {
    "litellm": litellm.convert,
    "llama-swap": llama_swap.convert,
    "olla": olla.convert,
}
# What starts engines on a machine: (text, name of the file, address of the machine or None) -> Draft.
STARTS: Mapping[str, Callable[[str, str, str | None], Draft]] = {
    "systemd": systemd.convert,
    "compose": compose.convert,
    "shell": shell_script.convert,
    "sparkrun": sparkrun.convert,
    "vllm-recipe": vllm_recipe.convert,
    "kubernetes": kubernetes.convert,
}
# Those that read further files beside their own.
WITH_FILES = {"systemd": systemd.convert, "compose": compose.convert, "shell": shell_script.convert}
_WORDS = {"to_do": "to do", "changed": "changed", "left_out": "left out"}
_COLOURS = {"to_do": "yellow", "changed": "cyan", "left_out": "bright_black"}
_MOST = 4 * 1024 * 1024  # bytes of a source


@examples(
    "gateway import litellm-config.yaml",
    "gateway import litellm-config.yaml -o -                # look at it first",
    "gateway import config.yaml --from llama-swap -o swap.yaml",
    "gateway import litellm-config.yaml --json --force      # notes for scripts",
    "gateway import vllm-qwen36.service --address 192.168.1.11",
    "gateway import compose.yaml --address spark1 -o -",
)
@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--from", "kind", type=click.Choice((*FORMATS, *STARTS)), help="Format of FILE; default: detected.")
@click.option(
    "--address", metavar="HOST", help="The machine on which a unit, a script or a compose file starts engines."
)
@output_options
@json_option
def command(file: Path, kind: str | None, address: str | None, output: Path, force: bool, as_json: bool) -> None:
    """Convert FILE to a routes.yaml: the config of LiteLLM's proxy, llama-swap or Olla; or a systemd unit, a compose
    file, a shell script, a recipe of sparkrun or of vLLM's site or a Kubernetes manifest that starts vLLM, which become
    launch blocks.

    Settings without a counterpart, with another effect or that need a change are listed with their line. Keys are never
    copied: they become ${NAME}. Exit code 0: written; 1: FILE cannot be read, or nothing in it can be used; 2: wrong
    usage.
    """
    refuse_to_overwrite(output, force=force)
    if address is not None and not is_host(address):
        raise click.UsageError(f"--address {address}: write a host name or an address, without a port")
    kind, draft = _converted(file, kind, address, as_json)
    text, loaded = render_and_verify(draft, output) if draft.backends else ("", None)
    deliver(text, output, force=force, document=_as_json(kind, draft, text, loaded) if as_json else None)
    if not as_json:
        _print(kind, draft, loaded, file, output)
    sys.exit(0 if draft.backends else 1)


def _converted(file: Path, kind: str | None, address: str | None, as_json: bool) -> tuple[str, Draft]:
    """(the format, the draft). Exits 1 with the mistakes of the file."""
    text = _read_config(file)
    try:
        if kind is None and (other := other_format(text, file.name)) is not None:
            raise click.UsageError(f"'{file}' is {other}: not read (--from reads it as the format that you name)")
        kind = kind or text_format_of(text)
        source = None if kind in STARTS else next(documents(text, file.name, last_counts=True), None)
        kind = kind or _kind(source, file)
        if kind in WITH_FILES:
            return kind, _with_head(WITH_FILES[kind](text, file.name, address, _beside(file)), file.name, kind)
        if kind in STARTS:
            return kind, _with_head(STARTS[kind](text, file.name, address), file.name, kind)
        assert source is not None
        if address is not None:
            raise click.UsageError(f"--address is for {', '.join(STARTS)}: a config of {kind} has addresses")
        return kind, _with_head(FORMATS[kind](next(documents(text, file.name), source)), file.name, kind)
    except ConfigError as error:
        fail_with(error, as_json=as_json)


def _beside(file: Path) -> Callable[[str], str | None]:
    """Reads the files beside a compose file, a script or a unit, as compose, a shell and systemd do."""

    def read(name: str) -> str | None:
        path = file.parent / Path(name).expanduser()
        try:
            return read_file(path, _MOST).decode("utf-8-sig") if path.is_file() else None
        except (OSError, ValueError):
            return None

    return read


def _read_config(file: Path) -> str:
    if not is_there(file):
        raise click.UsageError(f"there is no file '{file}'")
    try:
        return read_file(file, _MOST).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        click.echo(f"cannot read '{file}': {why}", err=True)
        sys.exit(1)


def _kind(source: SourceFile | None, file: Path) -> str:
    kind = format_of(source.data) if source is not None else None
    if kind == OURS:
        raise click.UsageError(f"'{file}' is a routes.yaml already: `gateway check {file}` shows what is in it")
    if kind is None and source is not None and (why := why_unknown(source.data)) is not None:
        raise click.UsageError(f"'{file}' is {why}")
    if kind is None:
        raise click.UsageError(
            f"'{file}' does not look like a config of {', '.join((*FORMATS, *STARTS))}: choose the format with --from"
        )
    return kind


def _with_head(draft: Draft, file: str, kind: str) -> Draft:
    draft.head = [
        f"Imported from {file} ({kind}). `gateway check` shows where each alias leads.",
        "Keys and addresses written as ${NAME} are read from the environment and from .env.",
    ]
    open_notes = [note for note in draft.notes if note.kind != "changed"]
    if open_notes:
        draft.tail = [f"# Not taken over from {file}, or to be done by hand:"]
        draft.tail += [f"#   {_line(note)}" for note in open_notes]
    return draft


def _line(note: ImportNote) -> str:
    problem = note.problem
    where = f"line {problem.line}, " if problem.line is not None else ""
    return visible(f"{where}{problem.path}: {problem.message}" + (f" - {problem.hint}" if problem.hint else ""))


# -- output -----------------------------------------------------------------------------------------------------------


def _as_json(kind: str, draft: Draft, text: str, loaded: LoadedFile | None) -> dict[str, Any]:
    return {
        "from": kind,
        "notes": [{"kind": note.kind, **asdict(note.problem)} for note in draft.notes],
        "warnings": [problem_json(p, "warning") for p in loaded.warnings] if loaded else [],
        "variables": variables(text) if text else [],
        **{section: list(getattr(draft, section)) for section in ("backends", "aliases", "clients")},
    }


def _print(kind: str, draft: Draft, loaded: LoadedFile | None, file: Path, output: Path) -> None:
    """Everything goes to stderr, because stdout may be the file."""
    for note in draft.notes:
        word = click.style(f"{_WORDS[note.kind]:8}", fg=_COLOURS[note.kind])
        click.echo(f"{word}  {note.problem}", err=True)
    if loaded is None:
        click.echo(f"\nNothing in '{file}' ({kind}) could be used; nothing is written.", err=True)
        return
    counts = Counter[str](note.kind for note in draft.notes)
    notes = ", ".join(f"{counts[k]} {word}" for k, word in _WORDS.items() if counts[k]) or "nothing to note"
    target = "stdout" if output == STDOUT else str(output)
    sections = (("backend", draft.backends), ("alias", draft.aliases), ("client", draft.clients))
    contents = ", ".join(counted(len(found), word) for word, found in sections)
    click.echo(f"\n{file} ({kind}) -> {target}: {contents}; {notes}", err=True)
    for warning in loaded.warnings:
        click.echo(f"{click.style('warning', fg='yellow')}   {warning}", err=True)
    if names := variables(render(draft)):
        click.echo(f"Set these before serving (in the environment or .env): {', '.join(names)}", err=True)
    if output != STDOUT:
        click.echo(f"Next: gateway check --live --config {output}", err=True)


# -- the formats, and how a file is recognised ------------------------------------------------------------------------


OURS = "routes.yaml"
_UNIT = re.compile(r"^\s*\[(Service|Unit|Install)\]\s*$", re.M)
_START = re.compile(r"^[^#\n]*\b(docker|podman)\s+(container\s+)?run\b|^[^#\n]*\bvllm(\s+serve|\.entrypoints)\b", re.M)
_KEY = re.compile(r"(?:---|%YAML.*|[\w\"'./-]+(?: [\w./-]+)*\s*:(?:\s.*)?|- .*)")


def other_format(text: str, file: str) -> str | None:
    """What the file is, if it is something that is read in no way; None if it may be one of the formats."""
    if re.match(r"#!.*\b(ba|da|z)?sh\b", text):
        return None
    first = next((line for line in text.splitlines() if line.strip()), "")
    for name, signs in data_of("formats")["others"].items():
        in_text, in_line = signs.get("text"), signs.get("line")
        if re.search(signs["name"], file, re.IGNORECASE):
            return str(name)
        if (in_text and re.search(in_text, text, re.M)) or (in_line and re.fullmatch(in_line, first)):
            return str(name)
    return None


def text_format_of(text: str) -> str | None:
    """`systemd`, `shell`, or None for a text that is YAML, or nothing that is known."""
    if re.match(r"#!.*sh\b", text):
        return "shell"
    if _UNIT.search(text):
        return "systemd"
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return "shell" if not _KEY.fullmatch(first.rstrip()) and _START.search(text) else None


def format_of(data: dict[str, Any]) -> str | None:
    """A name of FORMATS or STARTS, `routes.yaml`, or None for an unknown format."""
    if isinstance(data.get("model_list"), list) or "litellm_settings" in data:
        return "litellm"
    if isinstance(data.get("backends"), dict):
        return OURS
    if "apiVersion" in data and "kind" in data:
        return "kubernetes"
    if sparkrun.is_recipe(data):
        return "sparkrun"
    if vllm_recipe.is_vllm_recipe(data):
        return "vllm-recipe"
    if isinstance(data.get("services"), dict):
        return "compose"
    if "static" in mapping(data.get("discovery")):
        return "olla"
    models = mapping(data.get("models")).values()
    if any("cmd" in mapping(model) or "proxy" in mapping(model) for model in models):
        return "llama-swap"
    if any("proxy" in mapping(peer) for peer in mapping(data.get("peers")).values()):
        return "llama-swap"
    return None


def why_unknown(data: dict[str, Any]) -> str | None:
    """What a YAML file is that has nothing to read: named, so that nobody looks for a mistake in it."""
    if data.keys() & {"healthCheckTimeout", "startPort", "globalTTL", "logToStdout", "macros", "groups", "matrix"}:
        return "a llama-swap config without models: import the file that has them"
    if data.keys() & {"servingEngineSpec", "routerSpec", "replicaCount", "autoscaling", "ingress", "podAnnotations"}:
        return "values of a Helm chart: render it (helm template) and import the manifest"
    if "services" in data:
        return "a compose file without services"
    return None
