"""`gateway fleet plan`: memory per node. Does a mode fit, in which order to load it, and what would a change make."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from gateway.apps.control.memory.arithmetic import GIB, Demand
from gateway.apps.control.memory.live import (
    LiveEngine,
    LiveMemory,
    beside_the_plan,
    engine_beside_the_plan,
    with_observed,
)
from gateway.apps.control.memory.model_files import read_models
from gateway.apps.control.memory.plan import FleetPlan, NodePlan, plan, plan_json
from gateway.apps.control.memory.plan_svg import plan_svg
from gateway.apps.fleet.checking.live import liveness_path
from gateway.apps.fleet.lint.catalog import catalog_of
from gateway.cli.options import config_option, examples, fail, fail_with, json_option, load_or_exit
from gateway.config.document import plain_value
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Backend, Node, Snapshot
from gateway.domain.engine_traits import traits_of
from gateway.domain.observed_flags import ObservedFlags
from gateway.engines.vllm import read_flags
from gateway.health.nodes import read_machine
from gateway.health.probe_client import ProbeClient, ProbeFailure
from gateway.launch.command import with_changes
from gateway.printable import visible
from gateway.transport.prometheus_text import in_turns

_WIDTH = 120  # columns at least; a narrower terminal wraps the lines
_COLUMNS = ("backend", "target", "holds", "weights", "cache", "tokens", "full windows", "source")


@examples(
    "gateway fleet plan",
    "gateway fleet plan two-models --set qwen80b.gpu-memory-utilization=0.85",
    "gateway fleet plan --svg plan.svg",
    "gateway fleet plan ds4 --json",
    "gateway fleet plan --live                   # beside what the nodes and engines tell",
)
@click.command()
@click.argument("mode", required=False)
@config_option
@click.option(
    "--set", "changes", multiple=True, metavar="BACKEND.FLAG=VALUE", help="Plan with this flag instead; none = without."
)
@click.option(
    "--models",
    "folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where models are on this machine: DIR/ORG/NAME, or a cache of Hugging Face.",
)
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Also draw the plan into this file.")
@click.option("--live", is_flag=True, help="Also ask the nodes' exporters and the engines what they hold now.")
@json_option
def command(
    mode: str | None,
    config: Path,
    changes: tuple[str, ...],
    folders: tuple[Path, ...],
    svg: Path | None,
    live: bool,
    as_json: bool,
) -> None:
    """Say whether the backends of MODE fit into the memory of their nodes, and in which order to load them.

    Without MODE: the first mode of the file, or without modes every backend that always runs.

    Exit code 0: it fits, or it is not known; 1: a node does not fit; 2: there is no such mode, backend or file.
    """
    snapshot = load_or_exit(config, as_json=as_json).snapshot
    if mode is not None and mode not in snapshot.modes:
        there = f"there are {', '.join(snapshot.modes)}" if snapshot.modes else "the file has no `modes`"
        raise click.UsageError(f"no mode '{visible(mode)}': {there}")
    wanted = _changes(changes, snapshot)
    try:
        catalog = catalog_of(snapshot).memory
    except ConfigError as error:
        fail_with(error, as_json=as_json)
    fleet = plan(snapshot, mode, catalog, wanted, read_models(snapshot, folders))
    found = asyncio.run(ask_plan(snapshot, fleet)) if live else None
    if found is not None:
        fleet = with_observed(fleet, found.engines)
    if svg is not None:
        try:
            svg.write_text(plan_svg(fleet), "utf-8")
        except OSError as error:
            fail(f"cannot write '{svg}': {error.strerror or error}")
    if as_json:
        written = plan_json(fleet)
        if found is not None:
            found.add_to(written)
        click.echo(json.dumps(written, indent=2))
    else:
        _print(fleet, snapshot, found)
    sys.exit(0 if fleet.fits else 1)


# -- what-ifs ---------------------------------------------------------------------------------------------------------


def _changes(written: tuple[str, ...], snapshot: Snapshot) -> Mapping[str, Mapping[str, Any]]:
    """`--set BACKEND.FLAG=VALUE` as backend -> flag -> value. Raises UsageError."""
    changes: dict[str, dict[str, Any]] = {}
    for one in written:
        place, equals, value = one.partition("=")
        backend, flag = _target(place, snapshot)
        if not (equals and flag and value):
            raise click.UsageError(f"--set {visible(one)}: write BACKEND.FLAG=VALUE, as in qwen36.max-model-len=65536")
        if snapshot.backends[backend].launch is None:
            raise click.UsageError(f"--set {visible(one)}: {backend} has no launch block, so it has no flags")
        changes.setdefault(backend, {})[flag] = plain_value(value)
        _refuse_mistakes(snapshot.backends[backend], changes[backend], one)
    return changes


def _refuse_mistakes(backend: Backend, changes: Mapping[str, Any], written: str) -> None:
    """Raises UsageError where vLLM would refuse the command line with these flags, and not the one of the file."""
    assert backend.launch is not None
    before = set(backend.launch.parsed.mistakes)
    for mistake in with_changes(backend.launch.parsed, changes).mistakes:
        if mistake not in before and mistake.severity == "error":
            fix = f"; write {mistake.fix}" if mistake.fix else ""
            raise click.UsageError(f"--set {visible(written)}: {visible(mistake.message + fix)}")


def _target(place: str, snapshot: Snapshot) -> tuple[str, str]:
    """(backend, flag); names of backends may have dots, too: the longest that fits is meant."""
    names = [name for name in snapshot.backends if f"{place}.".startswith(f"{name}.")]
    if not names:
        there = ", ".join(name for name, backend in snapshot.backends.items() if backend.launch is not None)
        raise click.UsageError(
            f"--set {visible(place)}: no such backend; with a launch block there are {there or 'none'}"
        )
    backend = max(names, key=len)
    return backend, place[len(backend) + 1 :].lstrip("-")


# -- printing ---------------------------------------------------------------------------------------------------------


def _print(fleet: FleetPlan, snapshot: Snapshot, live: LiveFleet | None) -> None:
    click.echo(f"Mode {fleet.mode}" if fleet.mode is not None else "Backends that always run")
    if not fleet.nodes:
        click.echo("\nNothing to plan: no backend is on a node, and no node has `memory`.")
    for node in fleet.nodes.values():
        size = f", {node.memory:.2f} GiB" if node.memory is not None else ""
        click.echo(f"\n{node.name}{size}: {node.fits}\n  {visible(node.reason)}")
        if node.demands:
            click.echo(f"  load {', then '.join(node.order)}")
            _print_table(node)
        for line in live.lines(node) if live is not None else ():
            click.echo(f"  {visible(line)}")
    names = snapshot.modes[fleet.mode].backends if fleet.mode is not None else tuple(snapshot.backends)
    local = [one for name in names if not (one := snapshot.backends[name]).cloud]
    if loose := [one.name for one in local if not one.nodes and (fleet.mode or one.run == "always")]:
        click.echo(f"\nNot planned, because they are on no node: {', '.join(loose)}")
    if fleet.uncounted:
        uncounted = ", ".join(fleet.uncounted)
        click.echo(f"\nNot counted, because nothing says what they hold (launch.resident): {uncounted}")


def _print_table(node: NodePlan) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in _COLUMNS:
        right = column not in ("backend", "source")
        table.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for demand in node.demands.values():
        table.add_row(*(Text(cell, style="red" if demand.backend in node.failed else "") for cell in _cells(demand)))
    Console(width=max(Console().width, _WIDTH)).print(table)


def _cells(demand: Demand) -> tuple[str, ...]:
    sizes = (demand.target, demand.resident, demand.weights, demand.kv)
    gib = ("-" if size is None else f"{size:.1f} GiB" for size in sizes)
    tokens = "-" if demand.tokens is None else f"{demand.tokens:,}"
    windows = "-" if demand.windows is None else f"{demand.windows:.2f}"
    return (demand.backend, *gib, tokens, windows, demand.source)


@dataclass(frozen=True)
class LiveFleet:
    """The live figures beside a plan: by node (None if no exporter answers), and by backend that tells its flags."""

    nodes: Mapping[str, LiveMemory | None] = field(default_factory=dict)
    engines: Mapping[str, LiveEngine] = field(default_factory=dict)

    def add_to(self, plan: dict[str, Any]) -> None:
        """Add `live` to the nodes and backends of `plan_json`: the fields of Live and of LiveEngine, or None."""
        for name, node in plan["nodes"].items():
            live = self.nodes.get(name)
            node["live"] = None if live is None else asdict(live)
            for backend, demand in node["backends"].items():
                engine = self.engines.get(backend)
                demand["live"] = None if engine is None else asdict(engine)

    def lines(self, node: NodePlan) -> list[str]:
        """The lines to print of a node; a warning begins with `warning:`."""
        live = self.nodes.get(node.name)
        if live is None:
            return ["live: no exporter tells its memory", *self._engine_lines(node)]
        beside = "" if live.planned is None else f", {live.planned:.1f} planned"
        beside += f" ({live.note})" if live.note else ""
        warning = [f"warning: {live.warning}"] if live.warning else []
        return [f"live: {live.used:.1f} GiB in use{beside}", *warning, *self._engine_lines(node)]

    def _engine_lines(self, node: NodePlan) -> list[str]:
        found = []
        for name in node.order:
            engine = self.engines.get(name)
            if engine is None:
                continue
            stated = "" if engine.kv_tokens is None else f"{engine.kv_tokens:,} tokens of cache"
            stated += "" if engine.planned is None else f", {engine.planned:,} planned"
            found.append(f"live {name}: " + " - ".join(part for part in (stated, engine.note) if part))
            found += [f"warning: {name}: {engine.warning}"] if engine.warning else []
        return found


async def ask_plan(snapshot: Snapshot, plan: FleetPlan) -> LiveFleet:
    """Ask every exporter, and every backend that is on a node of the plan."""
    memory, running = await _ask(snapshot, plan.nodes.keys())
    nodes: dict[str, LiveMemory | None] = {}
    engines: dict[str, LiveEngine] = {}
    for name, node in plan.nodes.items():
        here = [backend for backend in running if name in snapshot.backends[backend].nodes]
        used = memory.get(name)
        nodes[name] = None if used is None else beside_the_plan(node, used, here)
        for backend, demand in node.demands.items():
            if backend in running and snapshot.backends[backend].engine == "vllm":
                stated = running[backend].values
                tokens, share = stated.get("kv-cache-size-tokens"), stated.get("gpu-memory-utilization")
                tokens = tokens if isinstance(tokens, int) and tokens > 0 else None
                share = float(share) if isinstance(share, int | float) else None
                engines.setdefault(backend, engine_beside_the_plan(demand, node.memory, tokens, share))
    return LiveFleet(nodes, engines)


async def idle_nodes(snapshot: Snapshot) -> dict[str, float]:
    """GiB in use on the nodes with an exporter on which no backend answers."""
    names = {node.name for node in snapshot.nodes.values() if node.exporter is not None}
    memory, running = await _ask(snapshot, names)
    busy = {name for backend in running for name in snapshot.backends[backend].nodes}
    return {name: gib for name, gib in memory.items() if gib is not None and name not in busy}


async def _ask(snapshot: Snapshot, names: Collection[str]) -> tuple[dict[str, float | None], dict[str, ObservedFlags]]:
    """(node -> GiB in use, backend that answers -> its flags) of these nodes, all asked at once."""
    nodes = [snapshot.nodes[name] for name in names if name in snapshot.nodes]
    backends = [one for one in snapshot.backends.values() if not one.cloud and not set(names).isdisjoint(one.nodes)]
    client = ProbeClient()
    try:
        used, up = await asyncio.gather(
            asyncio.gather(*(_memory_used(client, node) for node in nodes)),
            asyncio.gather(*(_flags(client, backend) for backend in backends)),
        )
    finally:
        await client.close()
    running = {backend.name: flags for backend, flags in zip(backends, up, strict=True) if flags is not None}
    return {node.name: gib for node, gib in zip(nodes, used, strict=True)}, running


async def _memory_used(client: ProbeClient, node: Node) -> float | None:
    """GiB in use; None if it has no exporter, or that tells none."""
    page = await client.page(node.exporter) if node.exporter is not None else b""
    machine = None if isinstance(page, ProbeFailure) else await in_turns(read_machine(page, time.time()))
    return None if machine is None or machine.memory_used is None else machine.memory_used / GIB


async def _flags(client: ProbeClient, backend: Backend) -> ObservedFlags | None:
    """The flags that the engine tells, nothing for an engine that tells none; None if it does not answer."""
    probe = traits_of(backend).probe
    if probe is None:
        return None
    page = await client.get(backend, probe.metrics or liveness_path(backend, probe))
    if isinstance(page, ProbeFailure) or page.status >= 500:
        return None
    tells = probe.metrics is not None and page.status == 200
    return (await in_turns(read_flags(page.body)) if tells else None) or ObservedFlags()
