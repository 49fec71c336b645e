"""`gateway fleet start`: start one backend, and wait until it serves."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

import click

from gateway.cli.fleet_operation import Asking, Refused, gateway_options, leave, run, url_of
from gateway.cli.options import complete_backend, config_option, examples, json_option, load_or_exit


@examples("gateway fleet start ds4", "gateway fleet start ds4 --profile latency   # what has to be rendered for that")
@click.command()
@click.argument("backend", shell_complete=complete_backend)
@config_option
@click.option("--profile", metavar="NAME", help="Start nothing: say what has to be rendered and installed first.")
@click.option("--force", is_flag=True, help="Also if it does not fit, or its node's preflight fails.")
@json_option
@gateway_options
def command(
    backend: str, config: Path, profile: str | None, force: bool, as_json: bool, at: str | None, key: str | None
) -> None:
    """Look the nodes of BACKEND over, start it, and wait until it serves. The running gateway does it.

    Exit code 0: it serves; 1: it failed, was refused, or the gateway could not be reached; 2: there is no such backend
    or profile.
    """
    url = url_of(config, at, as_json=as_json)
    if profile is not None:
        _tell_what_to_render(backend, profile, config, as_json=as_json)
    run(Asking(url, key), f"/admin/backends/{quote(backend, safe='')}/start", {"force": force}, as_json=as_json)


def _tell_what_to_render(backend: str, profile: str, config: Path, *, as_json: bool) -> NoReturn:
    from gateway.fleet.switching import how_to_render

    known = load_or_exit(config, as_json=as_json).snapshot.backends.get(backend)
    if known is None:
        leave(Refused(404, f"There is no backend '{backend}'."), as_json=as_json)
    if profile not in known.profiles:
        there = ", ".join(known.profiles) or "none"
        leave(Refused(404, f"'{backend}' has no profile '{profile}'. Profiles: {there}."), as_json=as_json)
    again = f"then `gateway fleet stop {backend}` where it runs, and `gateway fleet start {backend}`"
    leave(Refused(409, f"its unit must be {how_to_render(backend, profile)}; {again}"), as_json=as_json)
