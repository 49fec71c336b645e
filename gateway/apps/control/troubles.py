"""What ails an engine, by its units and its last words, whose likely cause is data (causes.toml). Its nodes are asked
when it falls, again while it stays out, and while its start is waited for."""

from __future__ import annotations

import asyncio
import re
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gateway.apps.control.engine_logs import shown
from gateway.apps.control.unit_commands import Unit, units_of
from gateway.apps.control.units import WORDS_ASKED, UnitState, gist, look
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State, Transition
from gateway.runtime.gateway import Gateway
from gateway.supervision import cancel

DEATHS_MOST = 2  # an engine that dies so often at its start will not serve
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
        await cancel(*self._asking.values())

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
        if units_of(state.backend, self._gateway.snapshot.nodes):
            failures = self._gateway.metrics.failures
            failures.only(self._asking, name, "operation", lambda: self._ask(name), f"last words of {name}")

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


@dataclass(frozen=True, slots=True)
class Cause:
    """A row of causes.toml. `line`: the one that shows it."""

    cause: str
    mend: str
    final: bool
    line: str = ""


def cause_of(words: Iterable[str], backend: str, unit: Unit) -> Cause | None:
    """What these lines of an engine mean; None where nothing is known of them. The last line that means something wins,
    but what is said to be the engine's core dying is the effect of a line before it."""
    names = {"backend": backend, "unit": unit.name, "target": unit.target, "node": unit.node}
    found = [(at, row, line) for line in words for at, (_, row) in enumerate(_rows()) if _rows()[at][0].search(line)]
    if not found:
        return None
    last = len(_rows()) - 1  # the general row
    _, row, line = next((one for one in reversed(found) if one[0] != last), found[-1])
    cause, mend = (re.sub(r"\{(\w+)\}", lambda found: names[found[1]], row[key]) for key in ("cause", "mend"))
    return Cause(cause, mend, bool(row.get("final")), line)


@cache
def _rows() -> list[tuple[re.Pattern[str], dict[str, str]]]:
    data = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))
    return [(re.compile(row["match"], re.IGNORECASE), row) for row in data["causes"]]


class StartWatch:
    """Looks at the units of a backend whose start is waited for. `begun_here`: this operation starts them, so every
    restart is one since then. `sign`: their last sign of life; `deaths`: each as a line, in the engine's words; `over`:
    why no more is to be expected, "" = it may serve yet. `words`: the last that were seen, `cause`: what they mean."""

    def __init__(self, backend: str, units: Sequence[Unit], *, begun_here: bool) -> None:
        self._backend = backend
        self.sign = self.over = ""
        self.cause: Cause | None = None
        self.deaths: list[str] = []
        self.words: tuple[str, ...] = ()
        self._units = units
        self._restarts: dict[Unit, int] = dict.fromkeys(units, 0) if begun_here else {}
        self._seen_down: set[Unit] = set()

    @property
    def told(self) -> list[str]:
        """What is known of its death, as lines."""
        mend = [f"likely: {self.cause.cause}", f"mend: {self.cause.mend}"] if self.cause is not None else []
        return [*self.deaths, *self.words, *mend]

    async def look(self) -> bool:
        """Look at all units now. Has one of them died since the last look?"""
        states = await look(self._units, words=WORDS_ASKED)
        known = [state for state in states.values() if state is not None]
        away = [unit.node for unit, state in states.items() if state is None]
        died = [state for state in known if self._has_died(state)]
        for state in [*known, *died]:  # of several, what the dead one said
            self.words = state.words or self.words
        for state in died:
            times = f" ({len(self.deaths) + 1} times)" if self.deaths else ""
            dead = f"it died at its start on {state.unit.node}, {state.how}{times}"
            self.deaths.append(self._with_words(state, dead))
        signs = [f"{state.shown} {state.words[-1]}" if state.words else state.shown for state in known]
        self.sign = "; ".join([*signs, *(f"{node} was not reached" for node in away)])
        self.over = self._why_over(known)
        return bool(died)

    def _why_over(self, known: Sequence[UnitState]) -> str:
        for state in known:
            if state.ended:
                if state.active == "failed" or state.result == "exec-condition":
                    return self._with_words(state, state.ended)
                if state.unit in self._seen_down:  # a start that was ordered a moment ago has no job yet
                    return state.ended
                self._seen_down.add(state.unit)
            else:
                self._seen_down.discard(state.unit)
        if len(self.deaths) >= DEATHS_MOST or (self.deaths and self.cause is not None and self.cause.final):
            return self.deaths[-1]
        return ""

    def _has_died(self, state: UnitState) -> bool:
        before = self._restarts.get(state.unit, state.restarts)
        waits = state.sub.startswith("auto-restart")
        now = state.restarts + waits  # the restart of a death is counted when it begins
        self._restarts[state.unit] = max(before, now)
        return now > before

    def _with_words(self, state: UnitState, text: str) -> str:
        self.cause = cause_of(state.words, self._backend, state.unit) or self.cause
        said = self.cause.line if self.cause is not None else gist(state.words)
        return f"{text}: {said}" if said else text
