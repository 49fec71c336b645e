"""Who gets which slot, and who waits for one: the one waiting set of a gateway.

A pure structure: no clock, no task, no sleep. Time is passed in (the fleet's monotonic seconds), and the one effect is
a waiter's `wake`. What is held is `BackendState.inflight`, so that whoever else counts there is respected too.
Where other gateways front the same backends, `others` are told who waits and what is held; while they decide together
who gets what (`serves` is False) nobody is served here. The order of those who wait for a backend is line.py's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gateway.admission.backend_queue import Line, seconds_until, why_full
from gateway.admission.capacity import is_full, is_open, looks, room
from gateway.admission.waiter import Held, QueueFull, Waiter
from gateway.domain.backend import BackendState

LEARN = 0.2  # how far one more request moves the service time


class Others(Protocol):
    """Other gateways in front of the same backends."""

    def waits(self, waiter: Waiter) -> None:
        """It waits, for other backends than before maybe."""

    def gone(self, waiter: Waiter) -> None:
        """It does not wait any more."""

    def took(self, held: Held, *, limited: bool) -> None:
        """`limited`: its client has a limit."""

    def gave(self, held: Held) -> None:
        """These slots are free again."""

    def key(self) -> str:
        """A name for slots that are taken without asking."""

    def settled(self, waiter: Waiter | None, estimate: int, tokens: int) -> None:
        """A request of a client with a tpm limit has ended, and used `tokens` instead of the estimate."""


class Scheduler:
    """Slots are taken by `at_once` or `offer` and given back by `release`. All calls take the time `now`."""

    def __init__(self) -> None:
        self.others: Others | None = None
        self.serves = True
        self.waiters: dict[Waiter, None] = {}
        self._lines: dict[int, Line] = {}  # by id of the state: two backends of one name may be there for a while
        self._running: dict[str, int] = {}  # requests with slots, of each client: any may get a limit by an edit
        self._count = 0

    # -- take and give back ---------------------------------------------------------------------------------------

    def at_once(
        self, state: BackendState, weight: int, now: float, client: str = "", limit: int | None = None
    ) -> Held | None:
        """Slots, if there is room and nobody waits for this backend. None also where others have to be asked."""
        if not self.serves and (limit is not None or state.backend.slots is not None):
            return None
        line = self._lines.get(id(state))
        if line is None:
            line = self._line(state)
        if line.waiting or not is_open(state, now):
            return None
        if limit is not None and self._running.get(client, 0) >= limit:
            return None
        most = room(state)
        need = weight if weight <= most else most
        if not most or state.inflight + need > most:
            return None
        return self._take(line, need, now, client, limit)

    def offer(self, waiter: Waiter, now: float) -> bool:
        """Let it wait; True = it has got its slots already. Raises `QueueFull`: decided here, on a first arrival, and
        never again."""
        first = not waiter.place
        if first:
            self._count += 1
            waiter.place = waiter.turn = self._count
        waiter.granted, waiter.late, waiter.refused = None, False, None
        self._join(waiter, now)
        if not self.serves:
            waiter.full = self._full(waiter, now) if first else None
            if waiter.full is not None and waiter.pending:  # there is nothing to ask the others for
                self._leave(waiter)
                raise waiter.full
            return False
        self._serve(self._lines_of(waiter), now)
        if waiter.granted is not None:
            return True
        if first and (full := self._full(waiter, now)) is not None:
            self._leave(waiter)
            raise full
        return False

    def release(self, held: Held, now: float, *, served: bool = True) -> None:
        """Give slots back: whoever is next gets them. `served` = how long it took tells how long others may take."""
        state = held.state
        line = self._line(state)
        state.inflight -= held.slots
        line.freed = now
        if self.others is not None:
            self.others.gave(held)
        if served:
            took = now - held.since
            line.service = took if line.service is None else line.service + (took - line.service) * LEARN
        self._one_less(held.client)
        if self.waiters:
            self._serve([line], now)

    def left(self, waiter: Waiter, now: float) -> None:
        """It does not wait any more. Slots that it got meanwhile are handed on."""
        if waiter in self.waiters:
            lines = self._lines_of(waiter)
            self._leave(waiter)
            self._serve(lines, now)  # it may have held up lighter ones
        elif waiter.granted is not None:
            held, waiter.granted = waiter.granted, None
            self.release(held, now, served=False)

    # -- with others ----------------------------------------------------------------------------------------------

    def given(self, waiter: Waiter, state: BackendState, slots: int, key: str, now: float) -> bool:
        """Others have given it slots. False = it does not take them: it has left, or they are of no use to it now."""
        if waiter not in self.waiters or waiter.pending or state not in waiter.choices or not is_open(state, now):
            return False
        self._grant(waiter, self._line(state), slots, now, key)
        return True

    def refuse(self, waiter: Waiter, reason: Exception) -> None:
        """It gets nothing."""
        if waiter in self.waiters:
            self._leave(waiter)
            waiter.refused = reason
            waiter.wake()

    def replan(self, waiter: Waiter, now: float) -> None:
        """What it goes by has changed, for it alone."""
        if waiter in self.waiters:
            self._leave(waiter)
            if waiter.replan(now):
                self._join(waiter, now)
            else:
                waiter.wake()

    def alone(self, now: float) -> None:
        """The others cannot be asked any more: those who wait are served here, or may not wait after all."""
        self.serves = True
        self._serve([line for line in self._lines.values() if line.waiting], now)
        for waiter in [waiter for waiter in self.waiters if waiter.full is not None]:
            assert waiter.full is not None
            self.refuse(waiter, waiter.full)

    # -- time and changes -----------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look at deadlines, at backends that have changed unsaid, and at room that nobody told of."""
        for waiter in [w for w in self.waiters if now >= w.deadline]:
            if waiter in self.waiters:
                lines = self._lines_of(waiter)
                self._leave(waiter)
                waiter.late = True
                waiter.wake()
                self._serve(lines, now)
        for line in list(self._lines.values()):
            if line.watching and line.looks != looks(line.state, now):
                self.changed(line.state, now)
        self._serve([line for line in self._lines.values() if line.waiting], now)

    def changed(self, state: BackendState, now: float) -> None:
        """A backend went, came back, or ends a pause: those whose plan it is in plan anew, in the order they came."""
        line = self._line(state)
        line.looks = looks(state, now)
        for waiter in list(line.watching):
            self.replan(waiter, now)
        self._serve([other for other in self._lines.values() if other.waiting], now)

    def forget(self, state: BackendState) -> None:
        """This backend is gone for good: nothing is held there, nobody may go there."""
        self._lines.pop(id(state), None)

    # -- what is told ---------------------------------------------------------------------------------------------

    def is_busy(self, state: BackendState, weight: int) -> bool:
        """No room there for one that comes now."""
        line = self._lines.get(id(state))
        return (line is not None and bool(line.waiting)) or is_full(state, weight)

    def depth(self) -> dict[str, int]:
        """Backend name -> how many wait for it. One that takes any of several counts at each."""
        found: dict[str, int] = {}
        for line in self._lines.values():
            found[line.state.name] = found.get(line.state.name, 0) + len(line.waiting)
        return found

    def expected(self, waiter: Waiter, now: float) -> float | None:
        """Seconds until it would get its slots if it came now; None = nothing tells."""
        if waiter.pending or self._at_limit(waiter):
            return None
        return seconds_until(waiter, self._lines_of(waiter), now)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _line(self, state: BackendState) -> Line:
        line = self._lines.get(id(state))
        if line is None:
            line = self._lines[id(state)] = Line(state)
        return line

    def _lines_of(self, waiter: Waiter) -> list[Line]:
        return [self._line(state) for state in waiter.choices]

    def _full(self, waiter: Waiter, now: float) -> QueueFull | None:
        """Why one that has just come (and joined) may not wait."""
        seconds = self.expected(waiter, now)
        why = why_full(waiter, self._lines_of(waiter), seconds, now)
        return QueueFull(why, seconds) if why is not None else None

    def _take(self, line: Line, slots: int, now: float, client: str, limit: int | None, key: str = "") -> Held:
        state = line.state
        if not state.inflight:
            line.freed = now
        state.inflight += slots
        self._running[client] = self._running.get(client, 0) + 1
        if self.others is None:
            return Held(state, slots, now, client)
        held = Held(state, slots, now, client, key or self.others.key())
        self.others.took(held, limited=limit is not None)
        return held

    def _one_less(self, client: str) -> None:
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]

    def _at_limit(self, waiter: Waiter) -> bool:
        return waiter.limit is not None and self._running.get(waiter.client, 0) >= waiter.limit

    def _join(self, waiter: Waiter, now: float) -> None:
        self.waiters[waiter] = None
        for state in waiter.choices:
            self._line(state).waiting[waiter] = None
        for state in waiter.watches:
            line = self._line(state)
            if not line.watching:
                line.looks = looks(state, now)
            line.watching[waiter] = None
        if self.others is not None:
            self.others.waits(waiter)

    def _leave(self, waiter: Waiter) -> None:
        del self.waiters[waiter]
        for line in self._lines.values():
            line.waiting.pop(waiter, None)
            line.watching.pop(waiter, None)
        if self.others is not None:
            self.others.gone(waiter)

    def _serve(self, lines: Iterable[Line], now: float) -> None:
        """Give what is free to whoever is next, backend by backend. Heavy ones and clients with a limit tie backends
        together (what one holds up here may change with what it gets there): then all are looked at until nobody gets
        anything more."""
        if not self.serves:
            return
        tied = any(w.weight > 1 or w.limit is not None for w in self.waiters)
        self._serve_once(lines, now)
        while tied and self._serve_once([line for line in self._lines.values() if line.waiting], now):
            pass

    def _serve_once(self, lines: Iterable[Line], now: float) -> bool:
        """True = somebody got slots."""
        count = self._count
        for line in lines:
            while line.waiting and is_open(line.state, now):
                waiter = line.next(self._at_limit, now)
                if waiter is None:
                    break
                most = room(line.state)
                need = min(waiter.weight, most)
                if not most or line.state.inflight + need > most:
                    break  # nobody behind it may have what it waits for
                self._grant(waiter, line, need, now)
        return self._count != count

    def _grant(self, waiter: Waiter, line: Line, slots: int, now: float, key: str = "") -> None:
        waiter.granted = self._take(line, slots, now, waiter.client, waiter.limit, key)
        self._leave(waiter)
        self._count += 1
        for other in line.waiting:
            if other.client == waiter.client:
                other.turn = self._count
        waiter.wake()
