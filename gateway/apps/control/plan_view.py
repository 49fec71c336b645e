"""`GET /status/plan`: the memory plan of the snapshot in force, beside the live memory of the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gateway.apps.control.memory.arithmetic import GIB
from gateway.apps.control.memory.live import beside_the_plan
from gateway.apps.control.memory.model_catalog import models_of
from gateway.apps.control.memory.model_files import read_models
from gateway.apps.control.memory.plan import FleetPlan, plan, plan_json
from gateway.apps.control.memory.plan_svg import plan_svg
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.health_state import SERVING
from gateway.health.nodes import Machine


class PlanView:
    """The plan is computed in a thread, once for each snapshot; live figures are added at each reading."""

    def __init__(self) -> None:
        self._planned_for: Snapshot | None = None
        self._planning = asyncio.Lock()  # many readers at once get one computation
        self._plan: FleetPlan | str = ""
        self._picture = ""

    async def read(
        self, snapshot: Snapshot, states: Mapping[str, BackendState], machines: Mapping[str, Machine]
    ) -> dict[str, Any]:
        """`{mode, nodes: {name: {..., live}}, svg, error}`; the keys of `gateway fleet plan --json`, and per node
        `live`: `{used, planned, note, warning}` in GiB, None without an exporter."""
        async with self._planning:
            if self._planned_for is not snapshot:
                self._plan, self._picture = await asyncio.to_thread(_planned, snapshot)
                self._planned_for = snapshot
            fleet, picture = self._plan, self._picture
        if isinstance(fleet, str):
            return {"mode": snapshot.mode, "nodes": {}, "svg": "", "error": fleet}
        found = plan_json(fleet)
        for name, node in fleet.nodes.items():
            machine = machines.get(name)
            used = machine.memory_used if machine is not None else None
            here = [s for s in states.values() if name in s.backend.nodes and s.name not in fleet.uncounted]
            running = [state.name for state in here if state.health.state in SERVING]
            live = None if used is None else asdict(beside_the_plan(node, used / GIB, running))
            found["nodes"][name]["live"] = live
        return {**found, "svg": picture, "error": None}


def _planned(snapshot: Snapshot) -> tuple[FleetPlan | str, str]:
    """(the plan, its picture); instead of the plan a text that names the mistake in the operator's catalogue."""
    try:
        catalog = models_of(snapshot)
    except ConfigError as error:
        return str(error), ""
    fleet = plan(snapshot, snapshot.mode, catalog, {}, read_models(snapshot))
    return fleet, plan_svg(fleet, style=False) if fleet.nodes else ""
