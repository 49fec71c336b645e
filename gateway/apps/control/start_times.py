"""How long engines took to start, kept in `server.data`, and what a switch may be expected to take by that."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from gateway.apps.control.lanes import waits_for
from gateway.apps.control.record import Operation
from gateway.config.sources import read_kept, replace_file

log = logging.getLogger("gateway.operations")

FILE = "start_times.json"  # backend -> seconds of its latest starts
FILE_MOST = 256 * 1024  # bytes
KEPT = 5  # starts of a backend

Nodes = Callable[[str], tuple[str, ...]]


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
        """Blocks. A failed write is logged and ignored."""
        try:
            replace_file(self._file, msgspec.json.encode(self.seconds))
        except OSError as error:
            log.warning("%s cannot be written: %s", self._file, error)

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
        for node in nodes_of(name) or ("",):
            lanes.setdefault(node, []).append({"backend": name, "seconds": times.expected(name)})
    before, ends = waits_for(names, nodes_of), dict[str, float]()
    for name in names:
        if (seconds := times.expected(name)) is None:
            break
        ends[name] = max((ends[other] for other in before[name]), default=0.0) + seconds
    total = max(ends.values()) if names and len(ends) == len(names) else None
    return [{"node": node, "starts": starts} for node, starts in lanes.items()], total
