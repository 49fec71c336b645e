"""`gateway check`: what is wrong or odd in routes.yaml, where each alias leads, and which aliases can leave the LAN."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

from gateway.apps.control.unit_commands import units_of
from gateway.apps.fleet.checking.alias_facts import AliasFacts, StepBackend, alias_facts
from gateway.apps.fleet.checking.live import BackendAnswer, ask_fleet
from gateway.apps.fleet.checking.seen import seen_by_gateway
from gateway.apps.fleet.lint.findings import findings_of, mode_cannot_run, print_findings
from gateway.apps.fleet.lint.subject import Finding
from gateway.cli.options import (
    config_option,
    counted,
    examples,
    fail_with,
    in_mode_or_exit,
    is_there,
    json_option,
    mode_option,
    no_file,
    problem_json,
)
from gateway.config.aliases import HERMES_WINDOW
from gateway.config.backends import lacks_cloud
from gateway.config.load import LoadedFile, load
from gateway.config.problems import ConfigError, Problem
from gateway.config.snapshot import Snapshot
from gateway.printable import visible
from gateway.routing.serving import unserved

FINE = "fine"


@examples(
    "gateway check",
    "gateway check --live                    # are they there, and do they serve what the file says?",
    "gateway check --mode ds4                # the second of the file's modes",
    "gateway check new.yaml --json",
)
@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@config_option
@click.option("--live", is_flag=True, help="Also ask every backend whether it is there and what it serves.")
@click.option("--all", "whole", is_flag=True, help="Also show where each alias leads, and what keeps requests from it.")
@mode_option
@json_option
def command(file: Path | None, config: Path, live: bool, whole: bool, mode: str | None, as_json: bool) -> None:
    """Say what is wrong or odd in FILE; the verdict comes last.

    The findings of `gateway fleet check` are shown, too, and what the running gateway sees differ. Exit code 0: it
    can be served; 1: it has a mistake, an extra that it needs is not installed, a mode cannot run, or (--live) a
    backend differs from it; 2: there is no such file.
    """
    path = file or config
    if not is_there(path):
        raise no_file(path)
    try:
        loaded = load(path)
    except ConfigError as error:
        _fail(error, as_json)
    snapshot = in_mode_or_exit(loaded.snapshot, mode)
    try:
        found = findings_of(loaded)  # of the file itself: it has all modes and profiles
    except ConfigError as error:
        fail_with(error, as_json=as_json)
    loaded = replace(loaded, snapshot=snapshot, warnings=_not_accepted(loaded.warnings, found))
    answers = asyncio.run(ask_fleet(loaded.snapshot)) if live else []
    seen = seen_by_gateway(loaded.snapshot)
    if as_json:
        click.echo(json.dumps(_as_json(loaded, found, answers, seen), indent=2))
    else:
        _print_text(loaded, found, answers, seen, whole=whole)
        differ = [answer.name for answer in answers if answer.problems]
        more = f", but not what is there ({', '.join(differ)})" if differ else ""
        click.echo(f"\n{path}: {_verdict(loaded, found)}{more} ({_counts(loaded.snapshot)})")
    sys.exit(0 if _verdict(loaded, found) == FINE and not any(answer.problems for answer in answers) else 1)


def _not_accepted(warnings: list[Problem], found: list[Finding]) -> list[Problem]:
    """The warnings without those of small windows that a comment of the file accepts (`# fine: agent-window`)."""
    small, words = {one.path for one in found if one.rule == "agent-window"}, f"below {HERMES_WINDOW:,}"
    return [one for one in warnings if words not in one.message or one.path in small]


def _verdict(loaded: LoadedFile, found: list[Finding]) -> str:
    """Whether the file can be served as it is, without a look at the backends."""
    if lacks_cloud(backend.engine for backend in loaded.snapshot.backends.values()):
        return "an extra is not installed"
    return "a mode cannot run" if mode_cannot_run(found) else FINE


def _fail(error: ConfigError, as_json: bool) -> NoReturn:
    """Print the mistakes to stdout, because they are the result of this command, and exit."""
    if as_json:
        fail_with(error, as_json=True)
    for problem in error.problems:
        click.echo(str(problem))
    count = len(error.problems)
    click.echo(f"\n{count} mistake{'s' if count > 1 else ''}: the file is not loaded.")
    sys.exit(1)


def _counts(snapshot: Snapshot) -> str:
    kinds = {"backend": snapshot.backends, "alias": snapshot.aliases, "client": snapshot.clients}
    return ", ".join(counted(len(found), kind) for kind, found in kinds.items())


def _proposed(snapshot: Snapshot) -> list[str]:
    """The backends whose engines the gateway could restart when they hang, and is not told to."""
    return [b.name for b in snapshot.backends.values() if b.recover is None and units_of(b, snapshot.nodes)]


def _as_json(
    loaded: LoadedFile, found: list[Finding], answers: list[BackendAnswer], seen: Mapping[str, list[str]]
) -> dict[str, Any]:
    facts = alias_facts(loaded.snapshot)
    return {
        "ok": _verdict(loaded, found) == FINE and not any(answer.problems for answer in answers),
        "mode": loaded.snapshot.mode,
        "problems": [problem_json(p, "warning") for p in loaded.warnings],
        "findings": [one.as_json() for one in found],
        "aliases": [alias.as_json() for alias in facts],
        "unserved": unserved(loaded.snapshot),
        "leaves_lan": {alias.name: list(alias.leaves_lan) for alias in facts if alias.leaves_lan},
        "proposed": [{"path": f"backends.{name}.recover", "value": {}} for name in _proposed(loaded.snapshot)],
        "seen": dict(seen),
        "live": [{"name": a.name, "said": a.result, "problems": a.problems} for a in answers],
    }


def _print_text(
    loaded: LoadedFile,
    found: list[Finding],
    answers: list[BackendAnswer],
    seen: Mapping[str, list[str]],
    *,
    whole: bool,
) -> None:
    snapshot = loaded.snapshot
    facts = alias_facts(snapshot)
    if loaded.warnings:
        click.echo("\nWarnings")
        for warning in loaded.warnings:
            click.echo(f"  {warning}")
    found = [one for one in found if one.rule != "agent-window"]  # a warning already
    if found:
        click.echo("\nFindings (gateway fleet check)")
        print_findings(found)
    if seen:
        click.echo("\nSeen by the running gateway")
        for name, lines in seen.items():
            for line in lines:
                click.echo(f"  backends.{name}: {line}")
    if proposed := _proposed(snapshot):
        names = ", ".join(proposed)
        click.echo(f"\nProposed: `recover: {{}}` under {names}: an engine that hangs is restarted (docs/modes.md)")
    if whole:
        _print_aliases(facts)
    click.echo("\nAliases that can leave the LAN")
    leaving = [alias for alias in facts if alias.leaves_lan]
    for alias in leaving:
        click.echo(f"  {alias.name}: to {', '.join(alias.leaves_lan)} ({_when(alias)})")
    if not leaving:
        click.echo("  none can")
    if answers:
        click.echo("\nAnswers")
        for answer in answers:
            problems = "".join(f"\n    problem: {visible(problem)}" for problem in answer.problems)
            click.echo(f"  {answer.name}: {visible(answer.result)}{problems}")
    if snapshot.mode is not None:
        lost = unserved(snapshot)
        without = f"; in this mode nobody serves {', '.join(lost)}" if lost else ""
        click.echo(f"\nin mode {snapshot.mode} of {', '.join(snapshot.modes)}{without}")


def _when(alias: AliasFacts) -> str:
    if any(member.cloud and member.step == 1 for member in alias.members):
        return "its first step"
    never = alias.cloud_when == "never entered"
    return alias.cloud_when if never else f"when everything before is {alias.cloud_when}"


def _window(tokens: int | None) -> str:
    return "read" if tokens is None else f"{tokens:,}"


def _thinking(member: StepBackend) -> str:
    """`optional, thinks unless told not to`."""
    words = {True: ", thinks unless told not to", False: ", thinks when told to"}
    return member.thinking + ("" if member.thinks_by_default is None else words[member.thinks_by_default])


def _title(alias: AliasFacts) -> str:
    further = f" (also {', '.join(alias.also)})" if alias.also else ""
    kind = " (a backend under its own name)" if alias.implicit else " (asks all)" if alias.ask_all else ""
    small = "; too small for Hermes" if alias.too_small_for_hermes else ""
    return f"{alias.name}{further}{kind}{small}"


def _print_aliases(facts: list[AliasFacts]) -> None:
    click.echo("\nAliases")
    for alias in facts:
        click.echo(f"  {_title(alias)}")
        for member in alias.members:
            click.echo(click.style(f"    {_line(member)}", fg="yellow" if member.cloud else None))
            for reason in member.skipped:
                click.echo(f"       skipped {reason}")


def _line(member: StepBackend) -> str:
    words = [f"{member.step}. {member.backend}", member.engine, member.host, f"window {_window(member.window)}"]
    words += [f"slots {member.slots}", f"tools {member.tools}", f"thinking {_thinking(member)}"]
    return "  ".join([*words, *(["CLOUD"] if member.cloud else [])])
