"""`gateway probe`: shows with tiny real requests what the backends do, check by check."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import (
    complete_backend,
    config_option,
    examples,
    json_option,
    key_option,
    server_shown,
    snapshot_served,
)
from gateway.domain.engine_traits import traits_of

if TYPE_CHECKING:
    from gateway.config.snapshot import Backend, Snapshot

    Findings = dict[str, Any]

_STYLES = {"yes": "green", "mended": "yellow", "no": "red", "untested": "bright_black"}


@examples(
    "gateway probe",
    "gateway probe qwen36 --now",
    "gateway probe --direct --json",
)
@click.command()
@click.argument("backend", required=False, shell_complete=complete_backend)
@config_option
@click.option("--now", is_flag=True, help="Do not wait until a backend is idle.")
@click.option("--direct", is_flag=True, help="Ask the backends from here, not through the running gateway.")
@key_option("Key of a client with `admin: true`")
@json_option
def command(backend: str | None, config: Path, now: bool, direct: bool, key: str | None, as_json: bool) -> None:
    """Show what BACKEND (default: all that are not clouds) really does.

    The running gateway sends the requests, and so learns from them; where none runs they are sent from here. Exit code
    0: all is as routes.yaml declares; 1: something is not, or a backend did not answer; 2: wrong usage.
    """
    snapshot = snapshot_served(config, as_json=as_json)
    chosen, left_out = choose(snapshot, backend)
    asked, found = _ask(snapshot, chosen, key, now=now, direct=direct, quiet=as_json)
    ok = not any(findings["problems"] for findings in found)
    if as_json:
        click.echo(json.dumps({"ok": ok, "asked": asked, "backends": found, "left_out": left_out}, indent=2))
    else:
        _print(found, left_out)
    sys.exit(0 if ok else 1)


def choose(snapshot: Snapshot, name: str | None) -> tuple[list[Backend], dict[str, str]]:
    """(the backends to ask, those left out and why). Raises UsageError."""
    backends = snapshot.backends
    if name is None:
        left_out = {b.name: reason for b in backends.values() if (reason := _why_not(b)) is not None}
        return [b for b in backends.values() if b.name not in left_out], left_out
    if name not in backends:
        from gateway.config.suggest import did_you_mean

        hint = did_you_mean(name, backends) or f"there are: {', '.join(backends)}"
        raise click.UsageError(f"there is no backend '{name}': {hint}")
    if not traits_of(backends[name]).chats:
        what = "is an audio server" if backends[name].engine == "http" else "serves no chats"
        raise click.UsageError(f"'{name}' {what}, for which there are no checks")
    return [backends[name]], {}


def _why_not(backend: Backend) -> str | None:
    if not traits_of(backend).chats:
        return "an audio server" if backend.engine == "http" else "serves no chats"
    return "a cloud: only asked when it is named, since it costs money" if backend.cloud else None


def _ask(
    snapshot: Snapshot, chosen: list[Backend], key: str | None, *, now: bool, direct: bool, quiet: bool
) -> tuple[str, list[Findings]]:
    """("gateway" or "direct", the findings in order)."""
    from gateway.apps.probing.run import ProbeImpossible, probe_by_gateway, probe_directly
    from gateway.cli.running import GatewayUnreachable, address, is_running

    def on_seen(backend: str, check: str, result: str) -> None:
        if not quiet and result != "untested":
            click.echo(f"{backend}: {check} {click.style(result, fg=_STYLES[result])}", err=True)

    async def ask() -> tuple[str, list[Findings]]:
        url = address(snapshot.server)
        if not direct and await is_running(url):
            return "gateway", await probe_by_gateway(url, key, chosen, on_seen, now=now)
        if not direct and not quiet:
            click.echo(f"No gateway runs at {url}: the backends are asked from here.", err=True)
        return "direct", await probe_directly(snapshot, chosen, on_seen, now=now)

    try:
        return asyncio.run(ask())
    except ProbeImpossible as problem:
        raise click.UsageError(str(problem)) from None
    except GatewayUnreachable as problem:
        raise click.UsageError(f"{problem}; use --direct to ask the backends from here") from None


# -- printing ---------------------------------------------------------------------------------------------------------


def _print(found: list[Findings], left_out: dict[str, str]) -> None:
    parked = [findings["backend"] for findings in found if is_parked(findings)]
    there = [findings for findings in found if findings["backend"] not in parked]
    if there:
        _print_table(there)
    for findings in there:
        _print_one(findings)
    if parked:
        click.echo(f"\nParked: {', '.join(parked)}")
    for name, reason in left_out.items():
        click.echo(f"\nNot asked: {name}, {reason}")
    broken = [f"{findings['backend']}: {problem}" for findings in found for problem in findings["problems"]]
    if broken:
        click.echo(f"\n{len(broken)} problem{'s' if len(broken) > 1 else ''}")
        for line in broken:
            click.echo(f"  {line}")


def is_parked(findings: Findings) -> bool:
    """Is the backend parked, so that no check was run?"""
    return findings["state"] == "parked" and all(seen["result"] == "untested" for seen in findings["checks"].values())


def _print_table(found: list[Findings]) -> None:
    """Checks down, backends across; colours on a terminal."""
    rows = [["", *(findings["backend"] for findings in found)]]
    for check in found[0]["checks"]:
        rows.append([check, *(findings["checks"][check]["result"] for findings in found)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[-1] = 0  # the last column needs no padding
    for row in rows:
        cells = [click.style(f"{cell:{width}}", fg=_STYLES.get(cell)) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells))


def deviations(findings: Findings) -> dict[tuple[str, str], list[str]]:
    """(result, evidence) of the checks that are not `yes` -> the names of those checks."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, seen in findings["checks"].items():
        if seen["result"] != "yes":
            found.setdefault((seen["result"], seen["seen"]), []).append(name)
    return found


def _print_one(findings: Findings) -> None:
    """The details below the table: checks that are not `yes`, and differences from routes.yaml."""
    click.echo(f"\n{findings['backend']}  {server_shown(findings)}  {findings['model'] or '-'}  {findings['state']}")
    for (result, saw), names in deviations(findings).items():
        click.echo(f"  {', '.join(names)} {click.style(result, fg=_STYLES[result])}: {saw}")
    for difference in findings["drift"]:
        click.echo(f"  drift: {difference}")
