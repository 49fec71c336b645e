"""What comes is started one at a time per node, because an engine takes more memory while it loads than it keeps. Nodes
that share no engine go side by side. How long earlier starts took is kept in `server.data`."""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gateway.apps.control.record import Operation, Step
from gateway.apps.control.switching import PlannedStep
from gateway.config.sources import keep, read_kept

log = logging.getLogger("gateway.operations")

FILE = "start_times.json"  # backend -> seconds of its latest starts
FILE_MOST = 256 * 1024  # bytes
KEPT = 5  # starts of a backend
_NO_NODE = ("",)  # what runs on no node of the file may be on one machine

Nodes = Callable[[str], tuple[str, ...]]
Pair = tuple[Step, PlannedStep]


def waits_for(names: Sequence[str], nodes_of: Nodes) -> dict[str, list[str]]:
    """Backend -> those before it that use one of its nodes."""
    nodes = {name: set(nodes_of(name) or _NO_NODE) for name in names}
    return {name: [other for other in names[:at] if nodes[other] & nodes[name]] for at, name in enumerate(names)}


async def run_lanes(
    pairs: Sequence[Pair], nodes_of: Nodes, step: Callable[[Step, PlannedStep], Awaitable[str | None]]
) -> str | None:
    """Run the steps of every backend, each when those of its nodes before it are done. Where one fails, what waits for
    it is not begun, and the others go on. Why the first one failed; None = none has."""
    chains: dict[str, list[Pair]] = {}
    for pair in pairs:
        chains.setdefault(pair[1].backend, []).append(pair)
    before = waits_for(list(chains), nodes_of)
    failures: list[str] = []
    tasks: dict[str, asyncio.Task[bool]] = {}

    async def chain(name: str, steps: list[Pair]) -> bool:
        if not all([await tasks[other] for other in before[name]]):
            return False
        for one, planned in steps:
            if (error := await step(one, planned)) is not None:
                failures.append(error)
                return False
        return True

    async with asyncio.TaskGroup() as group:
        for name, steps in chains.items():
            tasks[name] = group.create_task(chain(name, steps), name=f"start {name}")
    return failures[0] if failures else None


class StartTimes:
    """`seconds`: backend -> how long its latest starts took, from the command until it served."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._file = folder / FILE

    def load(self) -> None:
        """Blocks. A file that cannot be read counts as none."""
        self.seconds = read_kept(self._file, dict[str, list[float]], log, "start times are unknown", FILE_MOST) or {}

    def note(self, operation: Operation) -> bool:
        """Learn from the starts that have worked. False: there was none."""
        took: dict[str, float] = {}
        for step in operation.steps:
            if step.what in ("start", "wait") and step.state == "done" and step.seconds is not None:
                took[step.backend] = took.get(step.backend, 0.0) + step.seconds
        started = {step.backend for step in operation.steps if step.what == "start" and step.state == "done"}
        served = {step.backend for step in operation.steps if step.what == "wait" and step.state == "done"}
        for name in started & served:
            self.seconds[name] = [*self.seconds.get(name, []), round(took[name], 1)][-KEPT:]
        return bool(started & served)

    def save(self) -> None:
        """Blocks."""
        keep(self._file, self.seconds, log)

    def expected(self, name: str) -> float | None:
        """Seconds by its latest starts; None: it was not started yet."""
        known = self.seconds.get(name)
        return round(statistics.median(known), 1) if known else None


def lanes_of(names: Iterable[str], nodes_of: Nodes, times: StartTimes) -> tuple[list[dict[str, Any]], float | None]:
    """(`[{node, starts: [{backend, seconds}]}]`: what starts on each node, one after the other, the nodes side by side;
    the seconds until all of them serve, None where one of them was never started). An engine over several nodes is in
    the lane of each. `names`: in the order of their starts."""
    names = list(names)
    lanes: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        for node in nodes_of(name) or _NO_NODE:
            lanes.setdefault(node, []).append({"backend": name, "seconds": times.expected(name)})
    before, ends = waits_for(names, nodes_of), dict[str, float]()
    for name in names:
        if (seconds := times.expected(name)) is None:
            break
        ends[name] = max((ends[other] for other in before[name]), default=0.0) + seconds
    total = max(ends.values()) if names and len(ends) == len(names) else None
    return [{"node": node, "starts": starts} for node, starts in lanes.items()], total
