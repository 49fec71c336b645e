"""`gateway fleet switch`: put another mode in force, step by step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from gateway.cli.fleet_operation import (
    GatewayRefusal,
    GatewayUnreachable,
    OperationClient,
    gateway_options,
    leave,
    print_notes,
    print_step,
    run,
    url_of,
)
from gateway.cli.options import config_option, examples, json_option, load_or_exit


@examples(
    "gateway fleet switch ds4 --dry-run           # the steps, and nothing is done",
    "gateway fleet switch ds4",
    "gateway fleet switch daily --gateway http://192.168.1.5:4000 --json",
)
@click.command()
@click.argument("mode")
@config_option
@click.option("--dry-run", is_flag=True, help="Print the steps, and do nothing.")
@click.option("--force", is_flag=True, help="Also if the mode does not fit, or a node's preflight fails.")
@json_option
@gateway_options
def command(
    mode: str, config: Path, dry_run: bool, force: bool, as_json: bool, at: str | None, key: str | None
) -> None:
    """Put MODE in force: drain and stop what leaves, start what comes in the order of the memory plan, and wait until
    it serves. The running gateway does it; the command shows each step, and may be ended without ending the switch.

    Exit code 0: done; 1: it failed, was refused, or the gateway could not be reached; 2: there is no such mode.
    """
    asking = OperationClient(url_of(config, at, as_json=as_json), key)
    body = {"mode": mode, "force": force}
    if not dry_run:
        run(asking, "/admin/mode", body, as_json=as_json)
    try:
        steps = asking.post("/admin/mode", {**body, "dry_run": True})
    except GatewayRefusal as error:
        leave(error, as_json=as_json)
    except GatewayUnreachable as away:
        steps = _from_file(mode, config, str(away), as_json=as_json)
    _show(steps, force=force, as_json=as_json)


def _from_file(mode: str, config: Path, away: str, *, as_json: bool) -> dict[str, Any]:
    """The steps as far as the file tells them."""
    from gateway.apps.control.planning import assumed_presence, steps_of
    from gateway.apps.control.record import described

    snapshot = load_or_exit(config, as_json=as_json).snapshot
    if mode not in snapshot.modes:
        there = ", ".join(snapshot.modes) or "none: the file has no `modes`"
        leave(GatewayRefusal(404, f"There is no mode '{mode}'. Modes: {there}."), as_json=as_json)
    current = next(iter(snapshot.modes))
    steps = steps_of("switch", mode, snapshot, current, assumed_presence(snapshot, current))
    found = described("switch", mode, current, steps)
    found["notes"].insert(0, f"{away}; so this is as if mode {current} were in force and ran")
    return found


def _show(steps: dict[str, Any], *, force: bool, as_json: bool) -> NoReturn:
    refused = bool(steps["refusals"]) and not force
    if as_json:
        click.echo(json.dumps({"ok": not refused, **steps}, indent=2))
        sys.exit(1 if refused else 0)
    click.echo(f"From {steps['before'] or 'no mode'} to {steps['mode']}:")
    print_notes(steps)
    for step in steps["steps"]:
        print_step(step)
    if not steps["steps"]:
        click.echo("Nothing to do.")
    for refusal in steps["refusals"]:
        click.echo(f"{'Forced' if force else 'Refused'}: {refusal}", err=True)
    sys.exit(1 if refused else 0)
