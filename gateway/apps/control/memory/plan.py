"""The memory plan: what a mode's backends hold on every node, and whether each of them could start.

The engines of a node are loaded one after the other, the biggest first. Each one's start is checked against what is
free by then, as vLLM does; what cannot start holds nothing. Pure: the model's files are read by `model_files.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.apps.control.memory.arithmetic import (
    ADVISED_FREE_GIB,
    GIB,
    LOADING_MARGIN_GIB,
    SYSTEM_GIB,
    Demand,
    Verdict,
)
from gateway.apps.control.memory.launches import demand_of
from gateway.apps.control.memory.model_catalog import SPARK_GIB, ModelCatalog
from gateway.apps.control.memory.model_files import ModelFiles
from gateway.config.snapshot import Backend, Mode, Snapshot
from gateway.domain.engine_traits import traits_of
from gateway.launch.command import ServeCommand, with_changes

Changes = Mapping[str, Mapping[str, Any]]
"""Backend -> flag -> its value instead, as a profile writes them."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node in GiB. `free`: behind all that runs; None where something is not known. `order`: in which to load.
    `demands`: by backend in that order; `failed`: those of them that cannot start here."""

    name: str
    memory: float | None
    fits: Verdict
    free: float | None
    reason: str
    demands: Mapping[str, Demand] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(self.demands)

    @property
    def refused(self) -> tuple[str, ...]:
        """`failed`, in the order of loading."""
        return tuple(name for name in self.demands if name in self.failed)


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Without a `mode`: the backends that always run."""

    mode: str | None
    nodes: Mapping[str, NodePlan]
    uncounted: tuple[str, ...] = ()  # speech servers of which nothing says what they hold

    @property
    def fits(self) -> bool:
        """Whether no node is overfull. An unknown demand counts as fitting."""
        return all(node.fits != "no" for node in self.nodes.values())


def plan(
    snapshot: Snapshot,
    mode: str | None = None,
    catalog: ModelCatalog | None = None,
    changes: Changes | None = None,
    files: Mapping[str, ModelFiles] | None = None,
) -> FleetPlan:
    """The plan of a mode; None: the first one, or without modes every backend with `run: always`.

    Raises KeyError for an unknown mode."""
    chosen = snapshot.modes[mode] if mode is not None else next(iter(snapshot.modes.values()), None)
    planner = _Planner(snapshot, chosen, catalog or ModelCatalog(), changes or {}, files or {})
    always = (one.name for one in snapshot.engines.values() if one.run == "always" and not one.cloud)
    names = chosen.backends if chosen is not None else tuple(always)
    uncounted = tuple(name for name in names if _is_uncounted(snapshot.backends[name]))
    counted = [name for name in names if name not in uncounted]
    return FleetPlan(chosen.name if chosen is not None else None, planner.nodes(counted), uncounted)


def _is_uncounted(backend: Backend) -> bool:
    """Is it a server of something other than language models, of unknown memory? A speech server on the CPU takes
    little, and must not make the whole plan unknown."""
    measured = backend.launch is not None and backend.launch.resident is not None
    return not traits_of(backend).endpoints and not measured


# -- conflicts --------------------------------------------------------------------------------------------------------


def mode_conflicts(
    snapshot: Snapshot, catalog: ModelCatalog, files: Mapping[str, ModelFiles] | None = None
) -> Iterator[tuple[str, NodePlan]]:
    """The modes, and the nodes on which the plan says that their backends cannot run together, each of which could run
    there alone. Only a verdict `no` counts: what is not known, or fits barely, is no conflict."""
    for mode in snapshot.modes.values():
        planner = _Planner(snapshot, mode, catalog, {}, files or {})
        alone = [name for name in mode.backends if all(n.fits != "no" for n in planner.nodes([name]).values())]
        yield from ((mode.name, node) for node in planner.nodes(alone).values() if node.fits == "no")


def weights_gib(
    snapshot: Snapshot, catalog: ModelCatalog, files: Mapping[str, ModelFiles] | None = None
) -> dict[str, float]:
    """GiB of weights that each launched backend loads on one of its nodes, as far as they are known."""
    planner = _Planner(snapshot, None, catalog, {}, files or {})
    launched = (backend for backend in snapshot.backends.values() if backend.launch is not None and backend.nodes)
    found = {backend.name: planner.weights(backend) for backend in launched}
    return {name: weights for name, weights in found.items() if weights is not None}


# -- one plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Planner:
    snapshot: Snapshot
    mode: Mode | None
    catalog: ModelCatalog
    changes: Changes
    files: Mapping[str, ModelFiles]

    def nodes(self, names: Iterable[str]) -> dict[str, NodePlan]:
        """Every node that is written or that one of these backends runs on."""
        on: dict[str, list[Backend]] = {name: [] for name, node in self.snapshot.nodes.items() if node.memory}
        for backend in (self.snapshot.backends[name] for name in dict.fromkeys(names)):
            for node in dict.fromkeys(backend.nodes):
                on.setdefault(node, []).append(backend)
        return {name: self._node(name, backends) for name, backends in on.items()}

    def _memory(self, node: str) -> float | None:
        known = self.snapshot.nodes.get(node)
        return known.memory / GIB if known is not None and known.memory else None

    def _node(self, name: str, backends: list[Backend]) -> NodePlan:
        memory = self._memory(name)
        if memory is None:
            why = f"how much memory it has is not known: set nodes.{name}.memory"
            demands = {one.name: Demand(one.name, verdict="unknown") for one in sorted(backends, key=lambda b: b.name)}
            return NodePlan(name, None, "unknown", None, why, demands)
        written = self.snapshot.nodes[name].reserve
        reserve = SYSTEM_GIB if written is None else written / GIB
        return node_plan(name, memory, [self._demand(backend, memory) for backend in backends], reserve)

    def _demand(self, backend: Backend, memory: float) -> Demand:
        memories = tuple(self._memory(node) or memory for node in backend.nodes)  # the others are taken for its like
        return self._launched(backend, memory, memories)

    def weights(self, backend: Backend) -> float | None:
        memories = tuple(self._memory(node) or SPARK_GIB for node in backend.nodes)
        return self._launched(backend, memories[0], memories).weights

    def _launched(self, backend: Backend, memory: float, memories: tuple[float, ...]) -> Demand:
        files = self.files.get(backend.name)
        command = backend.launch.parsed if backend.launch is not None else ServeCommand()
        profile = self.mode.profiles.get(backend.name) if self.mode is not None else None
        if profile is not None:
            command = with_changes(command, backend.profiles.get(profile, {}))
        if backend.name in self.changes:
            command = with_changes(command, self.changes[backend.name])
        return demand_of(backend, command, memory, memories, self.catalog, files)


# -- one node ---------------------------------------------------------------------------------------------------------


def node_plan(name: str, memory: float, demands: Iterable[Demand], reserve: float = SYSTEM_GIB) -> NodePlan:
    """Load these onto a node of `memory` GiB, of which `reserve` is not free before; the biggest first."""
    ordered = sorted(demands, key=lambda demand: (-max(demand.needs or 0.0, demand.held or 0.0), demand.backend))
    free, refused, stalls = memory - reserve, {}, []
    for demand in ordered:
        why = _refusal(demand, memory, free)
        if why is not None:
            refused[demand.backend] = why
        else:
            stalls += _stall(demand, free)
            free -= demand.held or 0.0
    running = [demand for demand in ordered if demand.backend not in refused]
    fits, why = _verdict(running, refused, free, memory - reserve)
    notes = [f"{demand.backend}: {demand.note}" for demand in running if demand.note]
    grows = sum(demand.grows for demand in running)
    if grows and free - grows < ADVISED_FREE_GIB:
        stalls.append(f"with pictures they may come to hold {grows:.0f} GiB more: write --mm-processor-cache-gb 0 or 1")
    notes = [*notes, *stalls] if fits in ("yes", "barely") else notes
    known = all(demand.held is not None for demand in running)
    by_name = {demand.backend: demand for demand in ordered}
    reason = "; ".join([why, *notes])
    return NodePlan(name, memory, fits, max(free, 0.0) if known else None, reason, by_name, frozenset(refused))


def _refusal(demand: Demand, memory: float, free: float) -> str | None:
    """Why it cannot start with so much free; None if it can, as far as is known."""
    if demand.verdict == "no":
        return f"{demand.backend}: {demand.reason}"
    if demand.needs is not None and demand.needs > free:
        return f"the {demand.backend} needs {demand.needs:.1f} GiB free, {max(free, 0.0):.1f} will be"
    if demand.held is not None and demand.held > free:
        holds = f"the {demand.backend} starts, but comes to hold {demand.held:.1f} GiB"
        return f"{holds} where {max(free, 0.0):.1f} are free of {memory:.1f}"
    return None


def _stall(demand: Demand, free: float) -> list[str]:
    """What is to be said of the time in which it loads and profiles, with so much free before."""
    if demand.loading is None or free - demand.loading >= LOADING_MARGIN_GIB:
        return []
    left = max(0.0, free - demand.loading)
    return [
        f"but loading the {demand.backend} may need {demand.loading:.0f} GiB for a while: {left:.0f} stay free then"
    ]


def _verdict(running: list[Demand], refused: Mapping[str, str], free: float, most: float) -> tuple[Verdict, str]:
    if refused:
        return "no", "; ".join(refused.values())
    unknown = [f"{demand.backend}: {demand.reason}" for demand in running if demand.verdict == "unknown"]
    if unknown:
        return "unknown", "; ".join(unknown)
    tight = [why for demand in running if (why := _cannot_return(demand, running, most))]
    if free < ADVISED_FREE_GIB:
        tight.append(f"{free:.1f} GiB stay free, less than the {ADVISED_FREE_GIB:.0f} that are advised")
    return ("barely", "; ".join(tight)) if tight else ("yes", f"{free:.1f} GiB stay free")


def _cannot_return(demand: Demand, running: list[Demand], most: float) -> str | None:
    """Why it could not start again while the others run, after a crash for instance. `most`: GiB without any engine."""
    others = sum(other.held or 0.0 for other in running if other is not demand)
    free = most - others
    if demand.needs is None or demand.needs <= free:
        return None
    restart = f"the {demand.backend} could not restart beside the others"
    return f"{restart}: it needs {demand.needs:.1f} GiB free, {max(free, 0.0):.1f} would be"


# -- JSON -------------------------------------------------------------------------------------------------------------


def plan_json(fleet: FleetPlan) -> dict[str, Any]:
    """`gateway fleet plan --json`: GiB with two decimals, null where not known."""
    return {"mode": fleet.mode, "nodes": {name: _node_json(node) for name, node in fleet.nodes.items()}}


def _node_json(node: NodePlan) -> dict[str, Any]:
    return {
        "memory_gib": _rounded(node.memory),
        "fits": node.fits,
        "free_gib": _rounded(node.free),
        "reason": node.reason,
        "order": list(node.order),
        "backends": {name: _demand_json(demand) for name, demand in node.demands.items()},
    }


def _demand_json(demand: Demand) -> dict[str, Any]:
    found = {
        "target_gib": _rounded(demand.target),
        "resident_gib": _rounded(demand.resident),
        "weights_gib": _rounded(demand.weights),
        "kv_gib": _rounded(demand.kv),
        "kv_tokens": demand.tokens,
        "full_windows": _rounded(demand.windows),
        "source": demand.source,
    }
    return found if demand.span is None else {**found, "kv_tokens_between": list(demand.span)}


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 2)
