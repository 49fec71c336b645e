"""The memory plan of a node beside what the node holds now. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gateway.fleet.memory.plan import NodePlan

TOLERANCE = 0.10  # a plan that is further off than this is a wrong plan


@dataclass(frozen=True, slots=True)
class Live:
    """GiB. `used`: what the node's exporter reports; `planned`: what the plan says for the same backends, None where
    they cannot be compared, as `note` says. `warning`: they differ by more than 10 %."""

    used: float
    planned: float | None
    note: str | None = None
    warning: str | None = None


def beside_the_plan(node: NodePlan, used: float, running: Collection[str]) -> Live:
    """`used`: GiB of the node's memory in use; `running`: the backends of the fleet that answer on this node."""
    missing = [name for name in node.demands if name not in running]
    others = [name for name in running if name not in node.demands]
    if missing or others:
        apart = [f"{', '.join(missing)} not up"] if missing else []
        apart += [f"{', '.join(others)} up, and not planned"] if others else []
        return Live(used, None, "; ".join(apart))
    if node.memory is None or node.free is None or not node.demands:
        return Live(used, None, "the plan is not known")
    planned = node.memory - node.free
    off = (used - planned) / planned
    if abs(off) <= TOLERANCE:
        return Live(used, planned)
    more = "more" if off > 0 else "less"
    warning = f"{used:.1f} GiB are in use, {abs(off):.0%} {more} than the {planned:.1f} GiB of the plan: "
    warning += "measure what each engine holds, and write it as launch.resident"
    return Live(used, planned, None, warning)
