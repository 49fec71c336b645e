"""What comes is started one at a time per node, because an engine takes more memory while it loads than it keeps. Nodes
that share no engine go side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from gateway.apps.control.record import Step
from gateway.apps.control.switching import PlannedStep

T = TypeVar("T")
Pair = tuple[Step, PlannedStep]
_NO_NODE = ("",)  # what runs on no node of the file may be on one machine


def chains_of(steps: Iterable[T], backend_of: Callable[[T], str]) -> list[tuple[str, list[T]]]:
    """The steps of each backend, in the order in which the backends begin."""
    found: dict[str, list[T]] = {}
    for step in steps:
        found.setdefault(backend_of(step), []).append(step)
    return list(found.items())


def waits_for(names: Sequence[str], nodes_of: Callable[[str], tuple[str, ...]]) -> dict[str, list[str]]:
    """Backend -> those before it that use one of its nodes."""
    nodes = {name: set(nodes_of(name) or _NO_NODE) for name in names}
    return {name: [other for other in names[:at] if nodes[other] & nodes[name]] for at, name in enumerate(names)}


async def run_lanes(
    pairs: Sequence[Pair],
    nodes_of: Callable[[str], tuple[str, ...]],
    step: Callable[[Step, PlannedStep], Awaitable[str | None]],
) -> str | None:
    """Run the steps of every backend, each when those of its nodes before it are done. Where one fails, what waits for
    it is not begun, and the others go on. Why the first one failed; None = none has."""
    chains = chains_of(pairs, lambda pair: pair[1].backend)
    before = waits_for([name for name, _ in chains], nodes_of)
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
        for name, steps in chains:
            tasks[name] = group.create_task(chain(name, steps), name=f"start {name}")
    return failures[0] if failures else None
