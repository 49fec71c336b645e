"""`gateway fleet status`: the mode in force, the operation under way, and the state of every backend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gateway.cli.fleet_operation import (
    GatewayRefusal,
    GatewayUnreachable,
    OperationClient,
    gateway_options,
    leave,
    print_step,
    url_of,
)
from gateway.cli.options import config_option, examples, json_option


@examples("gateway fleet status", "gateway fleet status --json")
@click.command()
@config_option
@json_option
@gateway_options
def command(config: Path, as_json: bool, at: str | None, key: str | None) -> None:
    """Show which mode is in force, how far the operation under way is (or how the last one ended), and how each backend
    is.

    Exit code 0: it was shown; 1: the gateway could not be reached, or refuses the key; 2: wrong usage.
    """
    asking = OperationClient(url_of(config, at, as_json=as_json), key)
    try:
        found = asking.get("/admin/operations")
        backends = asking.get("/status").get("backends", {})
    except (GatewayUnreachable, GatewayRefusal) as error:
        leave(GatewayUnreachable(str(error)), as_json=as_json)
    states = {name: {key: one.get(key) for key in ("state", "reason")} for name, one in backends.items()}
    if as_json:
        click.echo(json.dumps({"ok": True, **found, "backends": states}, indent=2))
        return
    click.echo(f"Mode: {found['mode'] or 'none, routes.yaml has no `modes`'}")
    _print_operation(found["operation"])
    width = max((len(name) for name in states), default=0)
    for name, one in states.items():
        click.echo(f"{name:{width}}  {one['state']:13}  {one['reason'] or ''}")


def _print_operation(operation: Mapping[str, Any] | None) -> None:
    """The operation under way with its steps, or a failed one; of one that is done a line."""
    if operation is None:
        return
    switch = operation["kind"] == "switch"
    title = f"switch to {operation['mode']}" if switch else f"{operation['kind']} {operation['backend']}"
    title += {"request": " for a request", "idle": ", which is idle"}.get(operation.get("cause", ""), "")
    if operation.get("gateway"):
        title += f" at gateway {operation['gateway']}"
    click.echo(f"{'Under way' if operation['state'] == 'running' else 'Last'}: {title}, {operation['state']}")
    if operation["state"] == "done":
        return
    for step in operation["steps"]:
        print_step(step)
    if operation["error"]:
        click.echo(f"Failed: {operation['error']}\nWhat to do: {operation['hint']}.")
