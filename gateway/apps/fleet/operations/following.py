"""An operation of the running gateway: begun, and its steps shown until it has ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote

import click

from gateway.cli.running import GatewayClient, GatewayRefusal, GatewayUnreachable, gateway_options

EVERY = 0.3  # seconds between two looks at an operation
AWAY_MOST = 20.0  # seconds for which the gateway may be away while an operation is followed
_COLOURS = {"done": "green", "failed": "red", "skipped": "bright_black", "running": "cyan", "waiting": ""}

operator_options = gateway_options("Key of a client with `admin: true`")


def leave(error: Exception, *, as_json: bool) -> NoReturn:
    """Print why nothing was begun. Exits 2 for a name that there is not, else 1."""
    unknown = isinstance(error, GatewayRefusal) and error.status == 404
    if as_json:
        click.echo(json.dumps({"ok": False, "error": str(error)}, indent=2))
    else:
        click.echo(f"Error: {error}", err=True)
    sys.exit(2 if unknown else 1)


def run(asking: GatewayClient, path: str, body: Mapping[str, Any], *, as_json: bool) -> NoReturn:
    """Begin an operation, and show its steps until it has ended. Exits 0 when it is done, 1 when it failed or was
    refused, 2 for an unknown name."""
    try:
        operation = asking.post(path, body)
    except (GatewayUnreachable, GatewayRefusal) as error:
        leave(error, as_json=as_json)
    shown: dict[int, str] = {}
    if not as_json:
        print_notes(operation)
    try:
        while True:
            if not as_json:
                _print_news(operation, shown)
            if operation["state"] != "running":
                break
            time.sleep(EVERY)
            operation = _look(asking, operation["id"])
    except (GatewayUnreachable, GatewayRefusal) as error:
        leave(GatewayUnreachable(f"{error}; `gateway fleet status` shows how far it is"), as_json=as_json)
    except KeyboardInterrupt:
        click.echo("\nIt goes on without you: `gateway fleet status` shows how far it is.", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps(operation, indent=2))
    else:
        _print_end(operation)
    sys.exit(0 if operation["state"] == "done" else 1)


def _look(asking: GatewayClient, name: str) -> dict[str, Any]:
    """The operation as it is now; a gateway that does not answer may be back soon."""
    until = time.monotonic() + AWAY_MOST
    while True:
        try:
            return asking.get(f"/admin/operations/{quote(name, safe='')}")
        except GatewayUnreachable:
            if time.monotonic() >= until:
                raise
            time.sleep(EVERY)


def print_notes(operation: Mapping[str, Any]) -> None:
    for note in operation.get("notes", ()):
        click.echo(f"note: {note}")


def _print_news(operation: Mapping[str, Any], shown: dict[int, str]) -> None:
    """The steps whose state has changed since they were `shown`. A step that is skipped has its turn as well."""
    before_is_over = True
    for index, step in enumerate(operation["steps"]):
        has_its_turn = step["state"] != "skipped" or before_is_over
        before_is_over = before_is_over and step["state"] not in ("waiting", "running")
        if has_its_turn and step["state"] != shown.get(index, "waiting"):
            shown[index] = step["state"]
            print_step(step)


def print_step(step: Mapping[str, Any]) -> None:
    """One line, and the whole output of a step that failed."""
    state, output = step["state"], step["output"] or ""
    seconds = f"  {step['seconds']:.1f} s" if step["seconds"] is not None else ""
    mark = click.style(f"{state:8}", fg=_COLOURS.get(state) or None)
    short = f"  {output}" if output and state != "failed" and "\n" not in output else ""
    click.echo(f"{mark}  {step['what']:9}  {step['backend']}{seconds}{short}")
    if state == "failed":
        for line in output.splitlines():
            click.echo(f"            {line}")


def _print_end(operation: Mapping[str, Any]) -> None:
    if operation["state"] == "done":
        click.echo("Done.")
        return
    click.echo(f"Failed: {operation['error']}", err=True)
    click.echo(f"What to do: {operation['hint']}.", err=True)
