"""Looks at the units of a backend whose start is waited for: signs of life, and deaths in the engine's own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.apps.control.causes import Cause, cause_of
from gateway.apps.control.unit_commands import Unit
from gateway.apps.control.units import WORDS_ASKED, UnitState, gist, look

DEATHS_MOST = 2  # an engine that dies so often at its start will not serve


@dataclass(frozen=True, slots=True)
class Sighting:
    """`sign`: the last sign of life of the units. `death`: one of them has died since the last look. `over`: why no
    more is to be expected, "" = it may serve yet."""

    sign: str = ""
    death: bool = False
    over: str = ""


class StartWatch:
    """`begun_here`: this operation starts the units, so every restart is one since then. `deaths`: each as a line.
    `words`: the last words that were seen, `cause`: what they mean."""

    @property
    def told(self) -> list[str]:
        """What is known of its death, as lines."""
        mend = [f"likely: {self.cause.cause}", f"mend: {self.cause.mend}"] if self.cause is not None else []
        return [*self.deaths, *self.words, *mend]

    def __init__(self, backend: str, units: Sequence[Unit], *, begun_here: bool) -> None:
        self._backend = backend
        self.cause: Cause | None = None
        self.deaths: list[str] = []
        self.words: tuple[str, ...] = ()
        self._units = units
        self._restarts: dict[Unit, int] = dict.fromkeys(units, 0) if begun_here else {}
        self._seen_down: set[Unit] = set()

    async def look(self) -> Sighting:
        """Look at all units now."""
        states = await look(self._units, words=WORDS_ASKED)
        known = [state for state in states.values() if state is not None]
        away = [unit.node for unit, state in states.items() if state is None]
        died = [state for state in known if self._has_died(state)]
        for state in [*known, *died]:  # of several, what the dead one said
            self.words = state.words or self.words
        self.deaths += [self._death(state) for state in died]
        return Sighting(
            "; ".join([*map(_sign, known), *(f"{node} was not reached" for node in away)]),
            bool(died),
            self._over(known),
        )

    def _over(self, known: Sequence[UnitState]) -> str:
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

    def _death(self, state: UnitState) -> str:
        count = len(self.deaths) + 1
        return self._with_words(
            state,
            f"it died at its start on {state.unit.node}, {state.how}" + (f" ({count} times)" if count > 1 else ""),
        )

    def _with_words(self, state: UnitState, text: str) -> str:
        self.cause = cause_of(state.words, self._backend, state.unit) or self.cause
        said = self.cause.line if self.cause is not None else gist(state.words)
        return f"{text}: {said}" if said else text


def _sign(state: UnitState) -> str:
    return f"{state.shown} {state.words[-1]}" if state.words else state.shown
