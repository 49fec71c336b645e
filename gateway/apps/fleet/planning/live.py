"""`gateway fleet plan --live`: asks the exporters and the engines what they hold, and puts it beside the plan."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from gateway.apps.control.memory.arithmetic import GIB
from gateway.apps.control.memory.live import LiveEngine, LiveMemory, beside_the_plan, engine_beside_the_plan
from gateway.apps.control.memory.plan import FleetPlan, NodePlan
from gateway.apps.fleet.checking.live import ANSWER_MOST, NO_ANSWER, WAIT, get, liveness
from gateway.config.snapshot import Backend, Node, Snapshot
from gateway.domain.engine_traits import traits_of
from gateway.domain.observed_flags import ObservedFlags
from gateway.engines.vllm import read_flags
from gateway.health.nodes import read_machine
from gateway.transport.bounded import async_client, fetch
from gateway.transport.prometheus_text import in_turns


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
    """Ask every exporter, and every backend that is on a node of the plan, all at once."""
    nodes = [snapshot.nodes[name] for name in plan.nodes if name in snapshot.nodes]
    backends = [one for one in snapshot.backends.values() if not one.cloud and set(one.nodes) & plan.nodes.keys()]
    async with async_client(WAIT) as client:
        used, up = await asyncio.gather(
            asyncio.gather(*(_memory_used(client, node) for node in nodes)),
            asyncio.gather(*(_flags(client, backend) for backend in backends)),
        )
    running = {backend.name: flags for backend, flags in zip(backends, up, strict=True) if flags is not None}
    memory = {node.name: gib for node, gib in zip(nodes, used, strict=True)}
    return _beside(snapshot, plan, memory, running)


async def idle_nodes(snapshot: Snapshot) -> dict[str, float]:
    """GiB in use on the nodes with an exporter on which no backend answers."""
    nodes = [node for node in snapshot.nodes.values() if node.exporter is not None]
    names = {node.name for node in nodes}
    backends = [one for one in snapshot.backends.values() if not one.cloud and set(one.nodes) & names]
    async with async_client(WAIT) as client:
        used, up = await asyncio.gather(
            asyncio.gather(*(_memory_used(client, node) for node in nodes)),
            asyncio.gather(*(_flags(client, backend) for backend in backends)),
        )
    busy = {name for backend, flags in zip(backends, up, strict=True) if flags is not None for name in backend.nodes}
    return {node.name: gib for node, gib in zip(nodes, used, strict=True) if gib is not None and node.name not in busy}


def _beside(
    snapshot: Snapshot, plan: FleetPlan, memory: Mapping[str, float | None], running: Mapping[str, ObservedFlags]
) -> LiveFleet:
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
                engines.setdefault(backend, engine_beside_the_plan(demand, node.memory, _count(tokens), _share(share)))
    return LiveFleet(nodes, engines)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


async def _memory_used(client: httpx.AsyncClient, node: Node) -> float | None:
    """GiB in use; None if it has no exporter, or that tells none."""
    if node.exporter is None:
        return None
    try:
        page = await fetch(client, "GET", node.exporter, most=ANSWER_MOST, seconds=WAIT)
    except NO_ANSWER:
        return None
    machine = await in_turns(read_machine(page.content, time.time())) if page.status_code == 200 else None
    return None if machine is None or machine.memory_used is None else machine.memory_used / GIB


async def _flags(client: httpx.AsyncClient, backend: Backend) -> ObservedFlags | None:
    """The flags that the engine tells, nothing for an engine that tells none; None if it does not answer."""
    probe = traits_of(backend).probe
    if probe is None:
        return None
    try:
        if probe.metrics is None:
            status = await liveness(client, backend, probe)
            return ObservedFlags() if status < 500 else None
        page = await get(client, backend, backend.root_path + probe.metrics)
    except NO_ANSWER:
        return None
    if page.status_code >= 500:
        return None
    found = await in_turns(read_flags(page.content)) if page.status_code == 200 else None
    return found or ObservedFlags()
