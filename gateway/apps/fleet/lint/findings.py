"""`gateway fleet check`: every rule over every launch block, and over what is declared without one. Pure."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from types import ModuleType
from typing import Any

import click

from gateway.apps.control.memory.model_files import ModelFiles, read_models
from gateway.apps.fleet.lint import (
    rules_container,
    rules_drafts,
    rules_environment,
    rules_model,
    rules_nodes,
    rules_routes,
    rules_tools,
)
from gateway.apps.fleet.lint.catalog import Catalog, catalog_of
from gateway.apps.fleet.lint.rules_routes import DeclaredFleet
from gateway.apps.fleet.lint.subject import ORDER, Finding, Rule, Subject, subjects
from gateway.cli.options import config_option, counted, examples, fail_with, json_option, load_or_exit
from gateway.config.load import LoadedFile
from gateway.config.problems import ConfigError, Path
from gateway.config.snapshot import Snapshot


def rules_in(module: ModuleType) -> Mapping[str, Any]:
    """The rules of a module, which are its own functions that give findings, by the name that these show."""
    functions = {name: one for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__}
    rules = {n: f for n, f in functions.items() if inspect.isgeneratorfunction(f) and not n.startswith("_")}
    return {name.replace("_", "-"): rule for name, rule in rules.items()}


# Rules over one backend, by name.
RULES: Mapping[str, Rule] = {
    name: rule
    for module in (rules_tools, rules_model, rules_drafts, rules_container, rules_environment, rules_nodes)
    for name, rule in rules_in(module).items()
}
FLEET_RULES: Mapping[str, Callable[[DeclaredFleet], Iterator[Finding]]] = rules_in(rules_routes)  # over the whole file

# Facts of the file, of docker, of the machines and of JSON, which hold for whatever build an image has.
_OF_THE_FILE = frozenset(
    (
        *("image-tag", "docker-flags", "docker-gpus", "listen-host", "port-mapping", "volumes", "shell-quotes"),
        *("parallel-size", "command-quotes", "command-container", "flag-json", "flag-value", "flag-range"),
        *rules_in(rules_nodes),
    )
)
_ACCEPTS = re.compile(r"(?:^|\s)#\s*fine:\s*([a-z-]+(?:,\s*[a-z-]+)*)")
_ENTRY = 2  # the length of the path of a backend or alias
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")  # Docker's, Podman's
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def findings(
    snapshot: Snapshot,
    catalog: Catalog,
    lines: Mapping[Path, int] | None = None,
    *,
    in_container: bool = False,
    files: Mapping[str, ModelFiles] | None = None,
) -> list[Finding]:
    """The mistakes and oddities of a file, the errors first. `lines`: line of every path of the
    file (`LoadedFile.lines`). `in_container`: the gateway itself runs in one. `files`: the models on this machine."""
    every = list(subjects(snapshot, catalog, files))
    found = [one for subject in every for one in _of_subject(subject)]
    whole = {subject.backend.name: subject for subject in every if subject.profile is None}
    fleet = DeclaredFleet(snapshot, whole, catalog, in_container, files or {})
    found += [replace(one, rule=rule) for rule, judge in FLEET_RULES.items() for one in judge(fleet)]
    kept = dict.fromkeys(replace(one, line=_line(one.where or (), lines or {})) for one in _without_repeats(found))
    return sorted(kept, key=lambda one: (ORDER.index(one.severity), one.line or 0))


def _of_subject(subject: Subject) -> Iterator[Finding]:
    found = [replace(one, rule=rule) for rule, judge in RULES.items() for one in judge(subject)]
    found += [Finding(one.severity, one.message, one.fix or "", rule=one.rule) for one in subject.command.mistakes]
    for one in found:
        where = subject.place if one.where is None else one.where
        yield replace(_as_far_as_known(subject, one), where=("backends", subject.backend.name, *where))


def _as_far_as_known(subject: Subject, one: Finding) -> Finding:
    """What is known of released builds may not hold for another image: it is no error there. Of the words behind a
    program that is not known nobody can say whose they are."""
    if one.severity != "error" or subject.is_stock or one.rule in _OF_THE_FILE:
        return one
    message = f"if {subject.image} is vLLM as it is released: {one.message}"
    return replace(one, severity="note" if one.rule == "command-words" else "warning", message=message)


def _without_repeats(found: list[Finding]) -> Iterator[Finding]:
    """A mistake that a profile repeats from its command is reported once, at the command."""
    placed = [((one.where or ()), one) for one in found]
    stated = {(path[:2], one.rule, one.message) for path, one in placed if path[2:3] != ("profiles",)}
    for path, one in placed:
        if path[2:3] != ("profiles",) or (path[:2], one.rule, one.message) not in stated:
            yield one


def _line(path: Path, lines: Mapping[Path, int]) -> int | None:
    """The line of a path, or of the nearest thing around it that is written."""
    return next((found for end in range(len(path), 0, -1) if (found := lines.get(path[:end]))), None)


@examples(
    "gateway fleet check",
    "gateway fleet check --config new.yaml --json",
)
@click.command()
@config_option
@json_option
def command(config: FilePath, as_json: bool) -> None:
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
        kinds = [counted(n, kind) for kind in _COLOURS if (n := sum(one.severity == kind for one in found))]
        click.echo(", ".join(kinds) or "nothing found")
    sys.exit(1 if any(one.severity == "error" for one in found) else 0)


def findings_of(loaded: LoadedFile) -> list[Finding]:
    """The findings of a file, with the catalogue it names, but for those that a comment of the file accepts. Raises
    ConfigError for mistakes in that catalogue."""
    snapshot = loaded.snapshot
    catalog, files = catalog_of(snapshot), read_models(snapshot)
    in_container = any(FilePath(mark).exists() for mark in _CONTAINER_MARKS)
    found = findings(snapshot, catalog, loaded.lines, in_container=in_container, files=files)
    accepted = _accepted(loaded)
    return [one for one in found if one.severity == "error" or (*(one.where or ())[:2], one.rule) not in accepted]


def _accepted(loaded: LoadedFile) -> set[Path]:
    """The rules that comments accept (`# fine: image-tag, volumes`), each behind the path of the backend or alias in
    which the comment stands."""
    starts = [(line, path) for path, line in loaded.lines.items() if len(path) == _ENTRY]
    found: set[Path] = set()
    for number, line in enumerate(loaded.text.splitlines(), 1):
        if match := _ACCEPTS.search(line):
            _, entry = max((one for one in starts if one[0] <= number), default=(0, ()))
            found |= {(*entry, rule) for rule in match[1].replace(",", " ").split()}
    return found


def mode_cannot_run(found: list[Finding]) -> bool:
    """Whether a mode of the file holds backends that do not fit into one node together."""
    return any(one.rule == "mode-conflict" for one in found)


def print_findings(found: list[Finding]) -> None:
    """Each with its severity in colour; colours are left out where the output is no terminal."""
    for one in found:
        severity, _, rest = str(one).partition("  ")
        click.echo(f"{click.style(severity, fg=_COLOURS[severity], bold=True)}  {rest}\n")
