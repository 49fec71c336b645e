"""The memory plan beside the live figures of nodes and engines. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from gateway.apps.control.memory.arithmetic import Demand
from gateway.apps.control.memory.plan import FleetPlan, NodePlan

TOLERANCE = 0.10  # a plan that is further off than this is a wrong plan
_SAME_SHARE = 0.005  # values of --gpu-memory-utilization that differ by less are the same


@dataclass(frozen=True, slots=True)
class LiveMemory:
    """GiB. `used`: reported by the node's exporter; `planned`: the plan for the same backends, None where they cannot
    be compared, as `note` says. `warning`: they differ by more than 10 %."""

    used: float
    planned: float | None
    note: str | None = None
    warning: str | None = None


def beside_the_plan(node: NodePlan, used: float, running: Collection[str]) -> LiveMemory:
    """`used`: GiB of the node's memory in use; `running`: the backends of the fleet that answer on this node."""
    missing = [name for name in node.demands if name not in running]
    others = [name for name in running if name not in node.demands]
    if missing or others:
        apart = [f"{', '.join(missing)} not up"] if missing else []
        apart += [f"{', '.join(others)} up, and not planned"] if others else []
        return LiveMemory(used, None, "; ".join(apart))
    if node.memory is None or node.free is None or not node.demands:
        return LiveMemory(used, None, "the plan is not known")
    planned = node.memory - node.free
    apart_by = _difference(used, planned)
    if apart_by is None:
        return LiveMemory(used, planned)
    warning = f"{used:.1f} GiB are in use, {apart_by} than the {planned:.1f} GiB of the plan: "
    warning += "measure what each engine holds, and write it as launch.resident"
    return LiveMemory(used, planned, None, warning)


def _difference(live: float, planned: float) -> str | None:
    """`12% more`; None if not beyond the tolerance."""
    off = (live - planned) / planned
    return None if abs(off) <= TOLERANCE else f"{abs(off):.0%} {'more' if off > 0 else 'less'}"


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """`kv_tokens`: the size of its cache that an engine reports, None if it does not; `planned`: the size in the plan,
    None where they cannot be compared, as `note` says. `utilization`: the share of the memory that it reports to run
    with. `warning`: the tokens differ by more than 10 %."""

    kv_tokens: int | None
    planned: int | None
    utilization: float | None = None
    note: str | None = None
    warning: str | None = None


def engine_beside_the_plan(
    demand: Demand, memory: float | None, kv_tokens: int | None, utilization: float | None
) -> LiveEngine:
    """`demand`: the plan of an engine that answers, on a node of `memory` GiB."""
    if utilization is not None and memory and demand.target and abs(utilization - demand.target / memory) > _SAME_SHARE:
        note = f"it runs with --gpu-memory-utilization {utilization:g}, {demand.target / memory:.2f} is planned"
        return LiveEngine(kv_tokens, None, utilization, note)
    if kv_tokens is None:
        return LiveEngine(None, None, utilization, "it does not tell the size of its cache")
    if not demand.tokens:
        return LiveEngine(kv_tokens, None, utilization, "the plan does not know the size of its cache")
    apart_by = _difference(kv_tokens, demand.tokens)
    warning = None
    if apart_by is not None:
        warning = f"its cache has {kv_tokens:,} tokens, {apart_by} than the {demand.tokens:,} of the plan: the model's "
        warning += "weights or layers are other than known here (`models` of your own catalogue)"
    return LiveEngine(kv_tokens, demand.tokens, utilization, None, warning)


def with_observed(fleet: FleetPlan, engines: Mapping[str, LiveEngine]) -> FleetPlan:
    """The plan with the size of the cache that each engine reports instead of the estimate. The verdicts before the
    start stay, and so does the memory that the engine holds."""
    nodes = {}
    for name, node in fleet.nodes.items():
        demands = {backend: _observed(demand, engines.get(backend)) for backend, demand in node.demands.items()}
        nodes[name] = replace(node, demands=demands)
    return replace(fleet, nodes=nodes)


def _observed(demand: Demand, engine: LiveEngine | None) -> Demand:
    runs_as_planned = engine is not None and (engine.planned is not None or not demand.tokens)
    if engine is None or not engine.kv_tokens or not runs_as_planned:
        return demand
    source = demand.source if demand.source == "measured" else "observed"
    if not demand.tokens:
        return replace(demand, tokens=engine.kv_tokens, source=source)
    share = engine.kv_tokens / demand.tokens
    kv = None if demand.kv is None else demand.kv * share
    windows = None if demand.windows is None else demand.windows * share
    return replace(demand, tokens=engine.kv_tokens, kv=kv, windows=windows, source=source)
