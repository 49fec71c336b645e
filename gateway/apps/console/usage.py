"""`gateway usage`: the usage by client, alias and backend, read from the ledger, also while the gateway runs."""

from __future__ import annotations

import json
import sqlite3
import time
from itertools import compress
from pathlib import Path

import click

from gateway.accounting.ledger_file import NAME, Sums, sums_since
from gateway.apps.page.usage_report import row_json
from gateway.cli.options import config_option, examples, fail, is_there, json_option, snapshot_served
from gateway.config.units import parse_duration

_GROUPS = ("client", "alias", "backend")
_WIDTH = 132  # columns at least; a narrower terminal wraps the lines


@examples(
    "gateway usage",
    "gateway usage --since 30d --by client",
    "gateway usage --since 24h --json",
)
@click.command()
@config_option
@click.option("--since", default="7d", show_default=True, help="How far back: 12h, 7d, 90d.")
@click.option("--by", type=click.Choice(_GROUPS), help="Sum up by this only; default by all three.")
@json_option
def command(config: Path, since: str, by: str | None, as_json: bool) -> None:
    """Print requests, tokens, seconds, USD and seconds of speech by client, alias and backend.

    Exit code 0: printed; 1: there is no ledger, or it cannot be read.
    """
    try:
        seconds = parse_duration(since)
    except ValueError:
        raise click.UsageError(f"--since {since}: write a number and its unit, as in 12h or 7d") from None
    # `server.data` is relative to the current directory, as for the gateway itself
    path = Path(snapshot_served(config, as_json=as_json).server.data) / NAME
    if not (is_there(path) and path.is_file()):
        fail(f"there is no ledger {path.absolute()}: ask where the gateway runs, or has it served no request yet?")
    groups = (by,) if by is not None else _GROUPS
    start = time.time() - seconds
    try:
        sums = sums_since(path, start, groups)
    except (sqlite3.Error, OSError) as error:
        fail(f"the ledger {path.absolute()} cannot be read: {error}")
    if as_json:
        rows = [row_json(groups, row) for row in sums]
        click.echo(json.dumps({"ledger": str(path.absolute()), "since": start, "by": groups, "usage": rows}, indent=2))
    elif not sums:
        click.echo(f"No request in the last {since}.")
    else:
        _print(groups, sums, since)


# -- printing ---------------------------------------------------------------------------------------------------------


def _print(groups: tuple[str, ...], sums: list[Sums], since: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=f"the last {since}", title_justify="left", show_footer=len(sums) > 1)
    everything = Sums((), *(sum(column) for column in list(zip(*sums, strict=True))[1:]))
    for name in groups:
        table.add_column(name, "all" if name == groups[0] else "", overflow="fold")
    heads = ("requests", "failed", "seconds", "prompt", "cached", "completion", "reasoning", "audio s", "USD")
    shown = [head != "audio s" or _audio(everything) > 0.0 for head in heads]
    for head, footer in compress(zip(heads, _cells(everything), strict=True), shown):
        table.add_column(head, footer, justify="right", no_wrap=True)
    for row in sums:
        table.add_row(*(Text(name or "-") for name in row.group), *compress(_cells(row), shown))
    Console(width=max(Console().width, _WIDTH)).print(table)
    if everything.unpriced:
        click.echo("unknown, + ?: for some answers the price is not known; set `price` on the backend")


def _cells(row: Sums) -> tuple[str, ...]:
    known = f"{row.usd:,.4f}" if row.usd else "0"
    usd = known if not row.unpriced else f"{known} + ?" if row.usd else "unknown"
    tokens = (f"{n:,}" for n in (row.prompt, row.cached, row.completion, row.reasoning))
    return (f"{row.requests:,}", f"{row.errors:,}", f"{row.seconds:,.0f}", *tokens, f"{_audio(row):,.1f}", usd)


def _audio(row: Sums) -> float:
    return row.audio_in_seconds + row.audio_out_seconds
