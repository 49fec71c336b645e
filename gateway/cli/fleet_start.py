"""`gateway fleet start`: start one backend, and wait until it serves."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from gateway.cli.fleet_operation import OperationClient, gateway_options, run, url_of
from gateway.cli.options import complete_backend, config_option, examples, json_option


@examples("gateway fleet start ds4", "gateway fleet start ds4 --profile latency")
@click.command()
@click.argument("backend", shell_complete=complete_backend)
@config_option
@click.option(
    "--profile", metavar="NAME", help="Start it with this profile; where it runs with another one, stop it first."
)
@click.option("--force", is_flag=True, help="Also if it does not fit, or its node's preflight fails.")
@json_option
@gateway_options
def command(
    backend: str, config: Path, profile: str | None, force: bool, as_json: bool, at: str | None, key: str | None
) -> None:
    """Look the nodes of BACKEND over, start it, and wait until it serves. The running gateway does it. Without
    --profile it is started as in the mode in force.

    Exit code 0: it serves; 1: it failed, was refused, or the gateway could not be reached; 2: there is no such backend
    or profile.
    """
    body = {"force": force} if profile is None else {"force": force, "profile": profile}
    asking = OperationClient(url_of(config, at, as_json=as_json), key)
    run(asking, f"/admin/backends/{quote(backend, safe='')}/start", body, as_json=as_json)
