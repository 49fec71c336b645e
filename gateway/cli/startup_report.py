"""The log lines of `gateway serve` when all backends were probed: which are reachable, which are not, and which aliases
no backend serves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.domain.health_state import WELL, State
from gateway.routing.serving import can_serve

if TYPE_CHECKING:
    from gateway.config.snapshot import Alias, Snapshot
    from gateway.domain.backend import BackendState
    from gateway.runtime.gateway import Gateway

log = logging.getLogger("gateway")

PATIENCE = 10.0  # seconds to wait for the first probes; then the report is made without the missing ones
LOOK = 0.1  # seconds between two checks whether all probes are done


async def log_when_seen(gateway: Gateway) -> None:
    """Wait for the first probe of each backend, then log problems as warnings and the rest in one line."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not _all_seen(gateway):
        await asyncio.sleep(LOOK)
    summary, wrong = startup_report(gateway.snapshot, gateway.fleet.states, time.monotonic())
    log.info("%s", summary)
    for line in wrong:
        log.warning("%s", line)


def _all_seen(gateway: Gateway) -> bool:
    states = gateway.fleet.states
    unseen = (s for s in states.values() if s.health.state is State.UNKNOWN and s.backend.health.every is not None)
    return bool(states) and next(unseen, None) is None


def startup_report(snapshot: Snapshot, states: Mapping[str, BackendState], now: float) -> tuple[str, list[str]]:
    """(the reachable backends in one line; the problems, a line each)."""
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
    return f"first look: {summary or 'nobody is there'}", [*wrong, *_unserved_aliases(snapshot, states, now)]


def _unserved_aliases(snapshot: Snapshot, states: Mapping[str, BackendState], now: float) -> list[str]:
    """The aliases that no backend can serve now. A backend's own name is left out: the backend has a line of its own;
    so is an alias that the mode in force does not serve."""
    known = [a for a in snapshot.aliases.values() if a.steps and all(n in states for step in a.steps for n in step)]
    lost = [
        alias.name
        for alias in known
        if not alias.implicit and not _is_outside(alias, states) and not can_serve(alias, states, now)
    ]
    return [f"nobody can serve {', '.join(lost)} now"] if lost else []


def _is_outside(alias: Alias, states: Mapping[str, BackendState]) -> bool:
    """Does the mode in force park every local backend of the alias?"""
    local = [states[name] for step in alias.steps for name in step if not states[name].backend.cloud]
    return bool(local) and all(state.health.outside for state in local)
