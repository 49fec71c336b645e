"""What stands beside a backend that is out: how its unit is, its engine's last words, their likely cause and what mends
it. Asked of its node when it falls, and again while it stays out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from gateway.apps.control.causes import cause_of
from gateway.apps.control.engine_logs import shown
from gateway.apps.control.unit_commands import units_of
from gateway.apps.control.units import WORDS_ASKED, UnitState, look
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State, Transition
from gateway.runtime.gateway import Gateway

SETTLE = 2.0  # seconds after a fall until its node is asked: the last words have been written by then
AGAIN = 60.0  # seconds between two questions while it is out
_OUT = frozenset({State.DOWN, State.MISCONFIGURED})


class Troubles:
    """`known`: backend -> `{at, unit, words, cause, mend}` of those that are out; `cause` None = not known."""

    def __init__(self, gateway: Gateway) -> None:
        self.settle, self.again = SETTLE, AGAIN
        self.known: dict[str, dict[str, Any]] = {}
        self._gateway = gateway
        self._asking: dict[str, asyncio.Task[Any]] = {}

    async def open(self) -> None:
        self._gateway.fleet.observers.transitions.append(self._on_transition)
        for state in self._gateway.fleet.states.values():
            self._follow(state)

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_transition(self, transition: Transition) -> None:
        state = self._gateway.fleet.states.get(transition.backend)
        if state is not None:
            self._follow(state)

    def _follow(self, state: BackendState) -> None:
        name = state.name
        if state.health.state not in _OUT:
            if state.health.state is not State.WARMING:  # what it said before it was started again still counts
                self.known.pop(name, None)
            return
        if name not in self._asking and units_of(state.backend, self._gateway.snapshot.nodes):
            task = self._gateway.metrics.failures.once("operation", self._ask(name), f"last words of {name}")
            self._asking[name] = task
            task.add_done_callback(lambda _: self._asking.pop(name, None))

    async def _ask(self, name: str) -> None:
        await asyncio.sleep(self.settle)
        while (state := self._gateway.fleet.states.get(name)) is not None and state.health.state in _OUT:
            units = units_of(state.backend, self._gateway.snapshot.nodes)
            states = [one for one in (await look(units, words=WORDS_ASKED)).values() if one is not None]
            if states:
                self.known[name] = found_of(name, states)
            await asyncio.sleep(self.again)


def found_of(name: str, states: Sequence[UnitState]) -> dict[str, Any]:
    """`{at, unit, words, cause, mend}` of a backend, by its units."""
    told = next((one for one in states if not one.runs), states[0])
    cause = next((found for one in states if (found := cause_of(one.words, name, one.unit)) is not None), None)
    return {
        "at": time.time(),
        "unit": told.ended or told.shown,
        "words": [shown(line) for line in told.words],
        "cause": cause.cause if cause is not None else None,
        "mend": cause.mend if cause is not None else f"gateway fleet logs {name}",
    }
