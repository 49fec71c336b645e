"""What `gateway serve` says of its backends once it has looked at all of them: who is there, who is not, and which
aliases have nobody."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.domain.health_state import SERVING, WELL, State

if TYPE_CHECKING:
    from gateway.config.snapshot import Snapshot
    from gateway.domain.backend import BackendState
    from gateway.runtime.gateway import Gateway

log = logging.getLogger("gateway")

PATIENCE = 10.0  # seconds until it is said with what is known by then
LOOK = 0.1


async def tell(gateway: Gateway) -> None:
    """Wait for the first look at each backend, then log what is wrong as warnings and the rest in one line."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not _all_seen(gateway):
        await asyncio.sleep(LOOK)
    summary, wrong = first_look(gateway.snapshot, gateway.fleet.states)
    log.info("%s", summary)
    for line in wrong:
        log.warning("%s", line)


def _all_seen(gateway: Gateway) -> bool:
    states = gateway.fleet.states
    unseen = (s for s in states.values() if s.health.state is State.UNKNOWN and s.backend.health.every is not None)
    return bool(states) and next(unseen, None) is None


def first_look(snapshot: Snapshot, states: Mapping[str, BackendState]) -> tuple[str, list[str]]:
    """(who is there, in one line; what is wrong, a line each)."""
    ready = [name for name, state in states.items() if state.health.state in WELL]
    parked = [name for name, state in states.items() if state.health.state is State.PARKED]
    unasked = [name for name, state in states.items() if state.health.state is State.UNKNOWN]
    groups = (("ready", ready), ("parked", parked), ("not asked", unasked))
    summary = "; ".join(f"{word}: {', '.join(names)}" for word, names in groups if names)
    wrong = [
        f"{name} is {state.health.state}: {state.health.reason}"
        for name, state in states.items()
        if name not in (*ready, *parked, *unasked)
    ]
    return f"first look: {summary or 'nobody is there'}", [*wrong, *_aliases_without(snapshot, states)]


def _aliases_without(snapshot: Snapshot, states: Mapping[str, BackendState]) -> list[str]:
    """Aliases that nobody can serve now. A backend under its own name has been told of as itself."""
    lost = []
    for alias in snapshot.aliases.values():
        names = [name for step in alias.steps for name in step] or list(alias.ask_all)
        if not alias.implicit and not any(states[name].health.state in SERVING for name in names if name in states):
            lost.append(alias.name)
    return [f"nobody can serve {', '.join(lost)} now"] if lost else []
