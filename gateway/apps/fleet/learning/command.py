"""`gateway fleet learn`: writes what the engines said of their memory into routes.yaml, where the plan reads it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import click

from gateway.apps.control.unit_commands import unit_name
from gateway.apps.fleet.learning.startup_log import GIB, EngineStart, NoLog, last_start, lines_of_file, lines_of_node
from gateway.apps.fleet.planning import idle_nodes
from gateway.cli.config_edits import CannotEdit, text_of, with_entry, write_config
from gateway.cli.options import config_option, examples, fail, load_or_exit
from gateway.config.snapshot import Backend, Observed, Snapshot
from gateway.printable import visible

_AT_A_TIME = 8  # nodes
_NO_FIGURES = "no start of a vLLM that came as far as its cache is in it: 'Available KV cache memory' is missing"
_FEWEST_RESERVED = 0.5  # GiB


@dataclass(frozen=True, slots=True)
class Learned:
    """What one backend or node has told. `place`: of the mapping that gets `key: value`; `problem`: why it has not."""

    name: str
    place: tuple[str, ...] = ()
    key: str = ""
    value: str = ""
    before: str = ""
    problem: str | None = None


@examples(
    "gateway fleet learn                              # every launched backend, over the ssh of its node",
    "gateway fleet learn qwen36",
    "gateway fleet learn start.log --backend qwen36",
)
@click.command()
@click.argument("targets", nargs=-1, metavar="[BACKEND|FILE]...")
@config_option
@click.option("--backend", metavar="BACKEND", help="Whose start the FILE is of; default: by the model that it names.")
@click.option("--container", metavar="NAME", help="The container or unit on the node, where it is not spark-BACKEND.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
def command(targets: tuple[str, ...], config: Path, backend: str | None, container: str | None, dry_run: bool) -> None:
    """Read the start-up logs of engines, and write their figures as `observed` into routes.yaml.

    `gateway fleet plan` uses them instead of its estimates. Comments and order of the file stay. Of a node on which no
    backend answers, what its exporter says is in use becomes its `reserve`.

    Exit code 0: all was learned; 1: something was not; 2: there is no such backend or file.
    """
    loaded = load_or_exit(config)
    snapshot = loaded.snapshot
    found = list(_learned(targets, snapshot, backend, container))
    text = text_of(config)
    written = text
    for one in found:
        if one.problem is None:
            try:
                written = with_entry(written, one.place, one.key, one.value, before=one.before)
            except CannotEdit as problem:
                note = f"the file cannot be edited there ({problem}); write it yourself: {one.key}: {one.value}"
                found[found.index(one)] = replace(one, problem=note)
    if written != text and not dry_run:
        write_config(config, written)
    for one in found:
        told = one.problem or f"{one.key}: {one.value}"
        click.echo(visible(f"{one.name}: {told}"), err=one.problem is not None)
    if not found:
        fail("no backend with a launch block is on a node with `ssh`: name a FILE with the log of a start")
    sys.exit(1 if any(one.problem for one in found) else 0)


def _learned(
    targets: tuple[str, ...], snapshot: Snapshot, backend: str | None, container: str | None
) -> Iterator[Learned]:
    if backend is not None and backend not in snapshot.backends:
        raise click.UsageError(f"no backend '{visible(backend)}': there are {', '.join(snapshot.backends)}")
    named = [target for target in targets if target in snapshot.backends]
    for target in targets:
        if target not in named:
            yield _from_file(Path(target), snapshot, backend)
    chosen = [snapshot.backends[name] for name in named]
    if not targets:
        chosen = [one for one in snapshot.backends.values() if _is_reached(one, snapshot)]
    if container is not None and len(chosen) != 1:
        raise click.UsageError("--container names that of one backend: name the backend")
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        yield from threads.map(lambda one: _from_node(one, snapshot, container or unit_name(one.name)), chosen)
    if not targets:
        for name, gib in asyncio.run(idle_nodes(snapshot)).items():  # what they hold without a running backend
            if gib >= _FEWEST_RESERVED:
                yield Learned(name, ("nodes", name), "reserve", f"{gib:.1f}GiB")


def _is_reached(backend: Backend, snapshot: Snapshot) -> bool:
    launched = backend.launch is not None and backend.launch.parsed.is_vllm and bool(backend.nodes)
    return launched and backend.nodes[0] in snapshot.nodes and snapshot.nodes[backend.nodes[0]].ssh is not None


# -- where it is read -------------------------------------------------------------------------------------------------


def _from_file(path: Path, snapshot: Snapshot, backend: str | None) -> Learned:
    if str(path) != "-" and not path.is_file():
        there = ", ".join(snapshot.backends)
        raise click.UsageError(f"'{visible(str(path))}' is no backend and no file: there are {there}")
    try:
        start = last_start(lines_of_file(path))
    except NoLog as problem:
        return Learned(str(path), problem=str(problem))
    if start is None:
        return Learned(str(path), problem=_NO_FIGURES)
    name = backend or _of_model(start, snapshot)
    if name is None:
        models = ", ".join(sorted(start.models)) or "a model that it does not name"
        return Learned(str(path), problem=f"it is of {models}: say whose start it is with --backend NAME")
    return _figures(snapshot.backends[name], start)


def _of_model(start: EngineStart, snapshot: Snapshot) -> str | None:
    """The one backend that is launched with the log's model."""
    launched = [one for one in snapshot.backends.values() if one.launch is not None and one.launch.parsed.is_vllm]
    named = [one.name for one in launched if one.launch is not None and one.launch.parsed.model in start.models]
    return named[0] if len(named) == 1 else None


def _from_node(backend: Backend, snapshot: Snapshot, container: str) -> Learned:
    node = snapshot.nodes.get(backend.nodes[0]) if backend.nodes else None
    if node is None or node.ssh is None:
        where = f"nodes.{backend.nodes[0]}.ssh" if backend.nodes else f"backends.{backend.name}.node"
        return Learned(backend.name, problem=f"its node is not reached: write {where}, or name a FILE with its log")
    try:
        start = last_start(lines_of_node(node.ssh, container))
    except NoLog as problem:
        return Learned(backend.name, problem=str(problem))
    if start is None:
        return Learned(backend.name, problem=f"docker logs and journal of {container} on {node.name}: {_NO_FIGURES}")
    return _figures(backend, start)


# -- how it is written ------------------------------------------------------------------------------------------------


def _figures(backend: Backend, start: EngineStart) -> Learned:
    observed = _completed(start.observed, backend)
    return Learned(backend.name, ("backends", backend.name), "observed", _written(observed), "launch")


def _completed(seen: Observed, backend: Backend) -> Observed:
    """What the log does not say is taken from the launch block: the log of a start names only what is no default."""
    flags: Mapping[str, object] = backend.launch.parsed.flags if backend.launch is not None else {}
    share, window, kind = (flags.get(k) for k in ("gpu-memory-utilization", "max-model-len", "kv-cache-dtype"))
    if seen.utilization is None and isinstance(share, float):
        seen = replace(seen, utilization=share)
    if seen.window is None and isinstance(window, int) and window > 0:
        seen = replace(seen, window=window)
    kind = kind if isinstance(kind, str) and kind.isidentifier() else None if kind else "auto"
    return replace(seen, cache_dtype=seen.cache_dtype or kind)


_SIZES = ("memory", "free", "weights", "kv", "graphs")
_KEYS = (*("engine", "memory", "free", "utilization", "window", "cache_dtype"), *_SIZES[2:], "tokens", "concurrency")


def _written(seen: Observed) -> str:
    values = {key: value for key in _KEYS if (value := getattr(seen, key)) is not None}
    values |= {key: f"{values[key] / GIB:.2f}GiB" for key in _SIZES if key in values}
    values |= {"engine": f'"{seen.engine}"'} if seen.engine is not None else {}
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"
