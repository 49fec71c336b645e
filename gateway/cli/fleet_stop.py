"""`gateway fleet stop`: drain one backend, and stop it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from gateway.cli.fleet_operation import OperationClient, gateway_options, run, url_of
from gateway.cli.options import complete_backend, config_option, examples, json_option


@examples("gateway fleet stop ds4")
@click.command()
@click.argument("backend", shell_complete=complete_backend)
@config_option
@json_option
@gateway_options
def command(backend: str, config: Path, as_json: bool, at: str | None, key: str | None) -> None:
    """Send nothing new to BACKEND, wait until its streams have ended, and stop it. The running gateway does it, and
    does not take it for a failure. It gets requests again after `gateway fleet start`.

    Exit code 0: it is stopped; 1: it failed, was refused, or the gateway could not be reached; 2: there is no such
    backend.
    """
    asking = OperationClient(url_of(config, at, as_json=as_json), key)
    run(asking, f"/admin/backends/{quote(backend, safe='')}/stop", {}, as_json=as_json)
