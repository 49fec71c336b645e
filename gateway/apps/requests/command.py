"""`gateway requests` and `gateway why ID`: asked of the running gateway."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import click

from gateway.cli.options import complete_alias, complete_backend, complete_client, examples
from gateway.cli.running import GatewayClient, asks_gateway

REPLAY_WAIT = 1800.0  # seconds for the answer of a request that is sent again
EVERY = 1.0  # seconds between two looks of --follow
PATH = "/admin/requests"
_asks_gateway = asks_gateway("Key of an admin, or of the client whose requests they are")


@examples(
    "gateway requests",
    "gateway requests --failed --client hermes",
    "gateway requests --follow --json",
)
@click.command()
@click.option("--follow", is_flag=True, help="Go on with each request that ends; Ctrl-C leaves.")
@click.option("--client", shell_complete=complete_client, help="Of this client.")
@click.option("--alias", shell_complete=complete_alias, help="To this alias.")
@click.option("--failed", is_flag=True, help="Those that failed by the gateway's or a backend's fault.")
@click.option(
    "--capture", metavar="DURATION", help="Keep the bodies of what comes from now on for so long; 0s ends it."
)
@click.option("--limit", type=click.IntRange(1, 1000), default=30, show_default=True, help="So many past requests.")
@_asks_gateway
def requests(
    follow: bool,
    client: str | None,
    alias: str | None,
    failed: bool,
    capture: str | None,
    limit: int,
    as_json: bool,
    asking: GatewayClient,
) -> None:
    """List the last requests, the newest last, and below them those that run (`gateway why ID` tells one's story).

    With --capture an admin has the bodies kept, of --client or of all; `gateway replay ID` sends such a request again.

    With --json a line for each past request. Exit code 0: listed; 1: the gateway could not be asked.
    """
    wanted = {"client": client, "alias": alias, "outcome": "failed" if failed else None, "limit": limit}
    try:
        if capture is not None:
            asked = {"for": capture, **({"client": client} if client is not None else {})}
            asking.post("/admin/capture", asked)
        found = _ask(asking, wanted)
        past = found["requests"][::-1]
        _list(past, as_json=as_json)
        if not as_json:
            _print_running(found, past)
        while follow:
            time.sleep(EVERY)
            last = past[-1]["number"] if past else 0
            newer = _ask(asking, {**wanted, "limit": 1000, **({"after": last} if last else {})})["requests"]
            newer = newer if last else newer[::-1]
            _list(newer, as_json=as_json)
            past = newer or past
    except KeyboardInterrupt:
        click.echo("", err=True)


@examples("gateway why 0f8d2c4be1f04cc59b4f6a7b2a1e33c0", "gateway why ID --json")
@click.command()
@click.argument("id")
@_asks_gateway
def why(id: str, as_json: bool, asking: GatewayClient) -> None:
    """Tell what happened to the request with this `x-request-id`: who could not serve it, who was asked and why each
    failed, what was changed, how long it took, and what came of it.

    Exit code 0: told; 1: no such request is known, or the gateway could not be asked.
    """
    found = asking.get(f"{PATH}/{quote(id, safe='')}")
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for sentence in found["story"]:
        click.echo(sentence)
    if found["others"]:
        click.echo(f"({found['others']} more have this id: the client chooses it. This is the last.)")


@examples("gateway replay 0f8d2c4be1f04cc59b4f6a7b2a1e33c0", "gateway replay ID --on qwen36")
@click.command()
@click.argument("id")
@click.option("--on", metavar="BACKEND", shell_complete=complete_backend, help="To this backend alone.")
@_asks_gateway
def replay(id: str, on: str | None, as_json: bool, asking: GatewayClient) -> None:
    """Send the request with this `x-request-id` again, for its client, and show both answers side by side. Its body has
    to be captured (`gateway requests --capture 15m`).

    Exit code 0: it was answered; 1: it was not, or could not be sent.
    """
    found = asking.post(f"{PATH}/{quote(id, safe='')}/replay", {"on": on}, REPLAY_WAIT)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print_both(id, found)
    sys.exit(0 if found["status"] == 200 else 1)


def _print_both(id: str, found: Mapping[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    both = Table(box=box.SIMPLE_HEAD, expand=True)
    both.add_column("")
    both.add_column(f"then: {id}", ratio=1, overflow="fold")
    both.add_column(f"now: {found['backend'] or '-'}, {found['id']}", ratio=1, overflow="fold")
    for part in ("thoughts", "text", "calls", "end", "error"):
        shown = [found[when][part] for when in ("then", "now")]
        if any(shown):
            both.add_row(part, *(Text("\n".join(one) if isinstance(one, list) else one) for one in shown))
    Console().print(both)


def _ask(asking: GatewayClient, wanted: Mapping[str, Any]) -> dict[str, Any]:
    return asking.get(f"{PATH}?{urlencode({name: value for name, value in wanted.items() if value is not None})}")


def _list(past: list[dict[str, Any]], *, as_json: bool) -> None:
    for one in past:
        click.echo(json.dumps(one) if as_json else _past_line(one))
    sys.stdout.flush()


def _print_running(found: Mapping[str, Any], past: list[dict[str, Any]]) -> None:
    for one in found["running"]:
        click.echo(_running_line(one))
    if capturing := found["capture"]:
        until, whose = time.strftime("%H:%M:%S", time.localtime(capturing["until"])), capturing["client"]
        click.echo(f"Bodies are captured until {until}, of {whose or 'all clients'}: {capturing['requests']} so far")
    if not past and not found["running"]:
        click.echo("No request." if found["kept"]["keep"] else "No past requests are kept (server.requests).")


def _past_line(one: Mapping[str, Any]) -> str:
    """`12:03:07  200  hermes  writer -> qwen8b (fallback: down)  1,203+45 tokens  1.20 s  0f8d...`"""
    outcome = one["outcome"]
    colour = "red" if one.get("failed") else "yellow" if outcome != "200" or one.get("fallback") else None
    notes = [f"{kind}: {one[kind]}" for kind in ("fallback", "routed") if one.get(kind)]
    notes += [f"left {left['backend']}: {left['kind']}" for left in one.get("left", ())]
    first = f"first {one['first_token_ms'] / 1000:.2f} s, " if one["stream"] and one.get("first_token_ms") else ""
    words = [
        time.strftime("%H:%M:%S", time.localtime(one["at"])),
        click.style(f"{outcome:>5}", fg=colour),
        _whom(one),
        *([f"({'; '.join(notes)})"] if notes else []),
        f" {one['tokens_in']:,}+{one['tokens_out']:,} tokens, {first}{one['total_ms'] / 1000:.2f} s ",
        one["id"],
    ]
    return " ".join(words)


def _running_line(one: Mapping[str, Any]) -> str:
    tokens = f"{one['tokens_out']:,} tokens, " if one["tokens_out"] else ""
    doing = click.style(one["phase"], fg="cyan")
    return f"{'runs':>14} {_whom(one)}  {doing}, {tokens}{one['total_ms'] / 1000:.1f} s  {one['id']}"


def _whom(one: Mapping[str, Any]) -> str:
    backend = f" -> {one['backend']}" if one["backend"] else ""
    return f"{one['client']} {one['alias'] or '-'}{backend}"
