"""In which order the engines of a node load, and how long each may take.

The biggest loads first: an engine checks its share of the memory against what is free, and takes more while it profiles
than it keeps. So each one waits until those before it answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.apps.control.memory.arithmetic import GIB
from gateway.apps.control.memory.settings import UTILIZATION
from gateway.apps.fleet.render.launches import NodeLaunch
from gateway.config.snapshot import Mode, Snapshot

# A cold start is weights, compilation and CUDA graphs: 8 to 10 minutes for most models, 10 to 15 for 75 GB of weights.
_BASE_SECONDS = 600
_SECONDS_PER_GIB = 12
_SECONDS_BETWEEN_NODES = 600
_UNKNOWN_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class EarlierStart:
    """An engine that loads before another one on the same node: its unit, the URL of its liveness check, and how many
    seconds it may take."""

    unit: str
    url: str
    seconds: int


@dataclass(frozen=True, slots=True)
class UnitStart:
    """`seconds` until the engine must answer; `before`: the engines that load first, the biggest first."""

    seconds: int
    before: tuple[EarlierStart, ...] = ()


def starts(
    launches: Iterable[NodeLaunch], snapshot: Snapshot, weights: Mapping[str, float]
) -> dict[tuple[str, str], UnitStart]:
    """(backend, node) -> its start. One order for the whole fleet, so that no two engines wait for each other.
    `weights`: backend -> GiB that it loads on one node, as far as they are known."""
    ordered = sorted(launches, key=_share, reverse=True)
    found: dict[tuple[str, str], UnitStart] = {}
    for index, launch in enumerate(ordered):
        before = []
        for other in ordered[:index]:
            url = _seen_from(other, ordered)
            beside = other.node.name == launch.node.name and other.name != launch.name
            if beside and url and _run_together(other.backend.name, launch.backend.name, snapshot.modes):
                before.append(EarlierStart(other.name, url + other.backend.health.path, start_seconds(other, weights)))
        seconds = max(start_seconds(launch, weights), *(one.seconds for one in before), 0)
        found[launch.backend.name, launch.node.name] = UnitStart(seconds, tuple(before))
    return found


def start_seconds(launch: NodeLaunch, weights: Mapping[str, float]) -> int:
    """How long a start may take, by what the engine holds in memory (`resident`), which is at least its weights; else
    by its weights alone."""
    extra = _SECONDS_BETWEEN_NODES if launch.nodes > 1 else 0
    resident = launch.launch.resident
    gib = weights.get(launch.backend.name) if resident is None else resident / GIB
    if gib is None:
        return _UNKNOWN_SECONDS + extra
    seconds = _BASE_SECONDS + extra + _SECONDS_PER_GIB * gib
    return 60 * round(seconds / 60)


def _share(launch: NodeLaunch) -> float:
    """The share of a node's memory that the engine asks for; 0 = not known."""
    share = launch.command.flags.get("gpu-memory-utilization")
    if isinstance(share, int | float):
        return float(share)
    if launch.launch.resident and launch.node.memory:
        return launch.launch.resident / launch.node.memory
    return UTILIZATION if launch.command.is_vllm else 0.0


def _run_together(one: str, other: str, modes: Mapping[str, Mode]) -> bool:
    """Whether both may be started: some mode has both, or one of them is in no mode."""
    of_one, of_other = ({mode.name for mode in modes.values() if backend in mode.backends} for backend in (one, other))
    return not of_one or not of_other or bool(of_one & of_other)


def _seen_from(launch: NodeLaunch, launches: Iterable[NodeLaunch]) -> str | None:
    """Where the engine answers, as seen from this node: a worker answers nowhere, its head does."""
    if not launch.is_worker:
        return launch.url
    head = next(one for one in launches if one.name == launch.name and not one.is_worker)
    if head.url is None or head.node.address is None:
        return None
    port = head.url.rpartition(":")[2]
    address = f"[{head.node.address}]" if ":" in head.node.address else head.node.address
    return f"{head.url.partition('://')[0]}://{address}:{port}"
