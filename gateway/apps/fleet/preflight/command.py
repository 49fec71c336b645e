"""`gateway fleet preflight`: what would make a start fail on a node, and the command that mends it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from gateway.apps.fleet.preflight.expect import expected_nodes, without_node
from gateway.apps.fleet.preflight.host import ExpectedNode
from gateway.apps.fleet.preflight.run import NodeReport, look_at_all
from gateway.cli.options import config_option, examples, json_option, load_or_exit
from gateway.config.snapshot import Snapshot

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "bright_black"}
Nodes = list[tuple["ExpectedNode", str | None]]  # with where ssh reaches it; None: this machine


@examples(
    "gateway fleet preflight                      # every node that has `ssh`",
    "gateway fleet preflight --node spark1 --json",
    "gateway fleet preflight --node spark1 --here # this machine is spark1",
)
@click.command()
@config_option
@click.option("--node", metavar="NAME", help="Only this node.")
@click.option("--here", is_flag=True, help="The node is this machine: no ssh.")
@json_option
def command(config: Path, node: str | None, here: bool, as_json: bool) -> None:
    """Look the nodes over before a start: memory, ports, images, weights, units and more, with the command that mends
    each problem. Nothing is changed.

    Exit code 0: nothing that would make a start fail; 1: something would, or a node could not be reached; 2: wrong
    usage.
    """
    if here and node is None:
        raise click.UsageError("--here needs --node NAME: which node is this machine?")
    snapshot = load_or_exit(config, as_json=as_json).snapshot
    nodes, skipped = _chosen(snapshot, node, here=here)
    if not nodes:
        raise click.UsageError(
            skipped[0][1] if skipped else f"{config} has no node: write nodes, and node: under backends"
        )

    looked = look_at_all(nodes)
    skipped += [(f"backend {name}", "has no `node`") for name in (without_node(snapshot) if node is None else ())]
    ok = not any(one.failed for one in looked)
    if as_json:
        click.echo(json.dumps(_as_json(looked, skipped, ok=ok), indent=2))
    else:
        _print(looked, skipped)
    sys.exit(0 if ok else 1)


def _chosen(snapshot: Snapshot, name: str | None, *, here: bool) -> tuple[Nodes, list[tuple[str, str]]]:
    """(the nodes to look at, (name, why) of those that cannot be reached from here)."""
    if name is not None and name not in snapshot.nodes:
        raise click.UsageError(f"no node '{name}': there are {', '.join(snapshot.nodes) or 'none'}")
    nodes: Nodes = []
    skipped = []
    for expected in expected_nodes(snapshot):
        target = snapshot.nodes[expected.name].ssh
        if name not in (None, expected.name):
            continue
        if here or target is not None:
            nodes.append((expected, None if here else target))
        else:
            how = f"gateway fleet preflight --node {expected.name} --here"
            skipped.append((f"node {expected.name}", f"node '{expected.name}' has no ssh: run `{how}` there"))
    return nodes, skipped


def _as_json(looked: list[NodeReport], skipped: list[tuple[str, str]], *, ok: bool) -> dict[str, Any]:
    nodes = {
        one.node: {
            "where": one.where,
            "reached": one.problem is None,
            "problem": one.problem,
            "mend": one.mend,
            "checks": [asdict(check) for check in one.checks],
        }
        for one in looked
    }
    return {"ok": ok, "nodes": nodes, "skipped": [{"what": what, "why": why} for what, why in skipped]}


# Not a table, also on a terminal: a command that is to be copied must not be folded into a cell.
def _print(looked: list[NodeReport], skipped: list[tuple[str, str]]) -> None:
    for one in looked:
        if one.problem is not None:
            click.echo(f"{one.node} ({one.where}): {click.style('not reached', fg='red')}: {one.problem}")
            _print_mend(one.mend)
            continue
        counts = Counter[str](check.verdict for check in one.checks)
        click.echo(f"{one.node} ({one.where}): " + ", ".join(f"{counts[v]} {v}" for v in _COLOURS if counts[v]))
        for check in one.checks:
            mark = click.style(f"{check.verdict:7}", fg=_COLOURS[check.verdict])
            whose = f"{check.backend}: " if check.backend is not None else ""
            click.echo(f"  {mark}  {check.check:14}  {whose}{check.seen}")
            _print_mend(check.mend)
    for what, why in skipped:
        click.echo(f"skipped: {what}: {why}")


def _print_mend(mend: str | None) -> None:
    if mend is not None:
        click.echo(f"           {'mend:':>14}  {mend}")
