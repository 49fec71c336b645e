"""The mode that served goes on being served while the other one is impossible: after a switch whose target did not
start, the mode before is in force again as soon as one of its engines answers, and none of the target's does."""

from __future__ import annotations

import asyncio
import logging
import time

from gateway.apps.control.command import run
from gateway.apps.control.record import Operation
from gateway.apps.control.unit_commands import park_commands, with_credentials
from gateway.domain.health_state import WELL, State
from gateway.runtime.gateway import Gateway

log = logging.getLogger("gateway.operations")

LOOK = 1.0  # seconds between two looks
LOOK_FOR = 3600.0  # seconds
_TELL_MOST = 15.0  # seconds for telling a node the mode
_COMING = ("preflight", "start", "wait")


def is_impossible(operation: Operation) -> bool:
    """Did a switch fail because its target did not start?"""
    failed = {step.what for step in operation.steps if step.state == "failed"}
    switch = operation.kind == "switch" and operation.before not in (None, operation.mode)
    return operation.state == "failed" and switch and bool(failed) and failed <= set(_COMING)


async def watch(gateway: Gateway, operation: Operation) -> None:
    """Until the mode before is in force again, or another one was chosen, or the target answers."""
    until = time.monotonic() + LOOK_FOR
    while time.monotonic() < until:
        snapshot = gateway.snapshot
        before, target = snapshot.modes.get(operation.before or ""), snapshot.modes.get(operation.mode or "")
        if before is None or target is None or snapshot.mode != target.name:
            return
        if any(_answers(gateway, name) for name in target.backends if name not in before.backends):
            return
        there = [name for name in before.backends if name not in target.backends and _answers(gateway, name)]
        if there:
            await gateway.put_mode_in_force(before.name)
            operation.notes.append(
                f"mode {before.name} is in force again: {', '.join(there)} answers, nothing of {target.name} does"
            )
            log.warning("%s: %s", operation.title, operation.notes[-1])
            commands = park_commands(gateway.written, before.name)
            await asyncio.gather(*(run(with_credentials(one.argv), _TELL_MOST) for one in commands))
            return
        await asyncio.sleep(LOOK)


def _answers(gateway: Gateway, name: str) -> bool:
    state = gateway.fleet.states.get(name)
    if state is None:
        return False
    return state.health.state in WELL or (state.health.state is State.PARKED and state.health.oks > 0)
