"""`gateway fleet logs`: the log of an engine, read by the running gateway over the ssh of its node."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.parse import quote

import click

from gateway.apps.fleet.operations.command import leave, operator_options
from gateway.cli.options import complete_backend, config_option, examples, json_option
from gateway.cli.running import GatewayClient, GatewayRefusal, GatewayUnreachable, url_of


@examples("gateway fleet logs qwen36", "gateway fleet logs ds4 --node spark2 --follow")
@click.command()
@click.argument("backend", shell_complete=complete_backend)
@config_option
@click.option("--follow", is_flag=True, help="Go on with each line as it comes, until Ctrl-C.")
@click.option("--lines", type=click.IntRange(1, 2000), default=100, show_default=True, help="The last lines to show.")
@click.option("--node", metavar="NAME", help="Of an engine over several nodes: this one; default the head.")
@json_option
@operator_options
def command(
    backend: str,
    config: Path,
    follow: bool,
    lines: int,
    node: str | None,
    as_json: bool,
    at: str | None,
    key: str | None,
) -> None:
    """Show the journal of BACKEND's unit, else the log of its container. Escapes are taken out and secrets masked.

    Exit code 0: it was shown; 1: the node or the gateway could not be reached; 2: there is no such backend, or it has
    no rendered unit.
    """
    if follow and as_json:
        raise click.UsageError("--json shows what there is: leave out --follow")
    asking = GatewayClient(url_of(config, at, as_json=as_json), key)
    path = f"/admin/backends/{quote(backend, safe='')}/logs?lines={lines}&node={quote(node or '', safe='')}"
    try:
        found = asking.lines(f"{path}&follow=true" if follow else path)
        if as_json:
            click.echo(json.dumps({"ok": True, "backend": backend, "lines": list(found)}, indent=2))
            return
        for line in found:
            if line:
                click.echo(line)
    except (GatewayUnreachable, GatewayRefusal) as error:
        leave(error, as_json=as_json)
    except KeyboardInterrupt:
        sys.exit(0)
