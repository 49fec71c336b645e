"""Who gets which slot, and who waits for one: the one waiting set of a gateway.

A pure structure: no clock, no task, no sleep. Time is passed in (the fleet's monotonic seconds), and the one effect is
a waiter's `wake`. What is held is `BackendState.inflight`, so that whoever else counts there is respected too.
Where other gateways front the same backends, `others` are told who waits and what is held; while they decide together
who gets what (`serves` is False) nobody is served here.

The order of those who wait for a backend: interactive before batch; in each of the two first those that come back from
a failed attempt; then by turns between clients. A request's turn is its arrival, or the last time that a slot was given
to another request of the same client where both wait, whichever is later. So a client with a hundred waiting requests
is served once before one that has just come, and nobody who comes later can push in again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.config.snapshot import Client
from gateway.fleet import BackendState
from gateway.health.state import State
from gateway.routing.plan import unavailable

LEARN = 0.2  # how far one more request moves the service time


class QueueFull(Exception):
    """It may not even wait. `seconds` until asking again makes sense, None = nothing is known yet."""

    def __init__(self, why: str, seconds: float | None) -> None:
        super().__init__(why)
        self.seconds = seconds


class Held(NamedTuple):
    """Slots of one backend that are taken, since when, for whom. `key`: their name among gateways."""

    state: BackendState
    slots: int
    since: float
    client: str
    key: str = ""


class Quota(NamedTuple):
    """What counts once against the limits of a client that gateways share: a request and its probable tokens. `at`:
    when it was counted here."""

    client: Client
    tokens: int
    at: float


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits, or may have to. `choices` are the backends that it takes, best first; with `pending` it
    takes none of them yet: they are expected to be there later. `watches`: whose changes make its plan another.

    `replan` is called when a watched backend has changed: it sets `choices` and `pending` anew, and False means that
    there is nothing left to wait for. `wake` is called when it does not wait any more: it has got its slots
    (`granted`), its time is up (`late`), or neither: nothing is left.
    """

    client: str
    deadline: float
    wake: Callable[[], object]
    replan: Callable[[float], bool]
    choices: tuple[BackendState, ...] = ()
    watches: tuple[BackendState, ...] = ()
    weight: int = 1  # sequences
    batch: bool = False
    limit: int | None = None  # the client's `max_inflight`
    pending: bool = False
    returning: bool = False  # from a failed attempt
    place: int = 0  # number of its arrival; kept when it waits again
    turn: int = 0
    granted: Held | None = None
    late: bool = False
    # where other gateways decide with us
    key: str = ""  # under which it waits there
    ticket: tuple[int, int] = (0, 0)  # its place and turn there
    quota: Quota | None = None  # not counted yet
    counted: int = 0  # the second there in which it was
    full: QueueFull | None = None  # why it may not wait
    refused: Exception | None = None  # it gets nothing, for this reason


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


@dataclass(slots=True, eq=False)
class Line:
    """One backend: who waits for it, and how long its requests took. Dicts serve as sets that keep their order."""

    state: BackendState
    waiting: dict[Waiter, None] = field(default_factory=dict)
    watching: dict[Waiter, None] = field(default_factory=dict)
    looks: str = ""  # as it was when last looked at, while somebody watches
    service: float | None = None  # seconds that a request holds its slots, lately
    freed: float = 0.0  # when slots became free last, or the first one was taken

    def share(self) -> float:
        """How many wait here, where one that waits for n backends counts for an n-th."""
        return sum(1 / len(w.choices) for w in self.waiting)


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
        if state.inflight + need > most:
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
            why = self._why_full(waiter, now) if first else None
            waiter.full = QueueFull(why, self.expected(waiter, now)) if why is not None else None
            if waiter.full is not None and waiter.pending:  # there is nothing to ask the others for
                self._leave(waiter)
                raise waiter.full
            return False
        self._serve([self._line(state) for state in waiter.choices], now)
        if waiter.granted is not None:
            return True
        if first and (why := self._why_full(waiter, now)) is not None:
            seconds = self.expected(waiter, now)
            self._leave(waiter)
            raise QueueFull(why, seconds)
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
            lines = [self._line(state) for state in waiter.choices]
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
                lines = [self._line(state) for state in waiter.choices]
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
        """Seconds until it would get its slots if it came now; None = nothing tells.

        By how long requests have lately held a slot, and by how many are before it. Before any has ended: as long
        as none has."""
        lines = [self._line(state) for state in waiter.choices]
        rate = sum(room(line.state) / max(line.service, 0.001) for line in lines if line.service is not None)
        if waiter.pending or self._at_limit(waiter):
            return None
        if not rate:
            return min((now - line.freed for line in lines if line.freed), default=None)
        return (self._ahead(waiter, lines) + waiter.weight) / rate

    # -- inside ---------------------------------------------------------------------------------------------------

    def _line(self, state: BackendState) -> Line:
        line = self._lines.get(id(state))
        if line is None:
            line = self._lines[id(state)] = Line(state)
        return line

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
                waiter = self._next(line, now)
                if waiter is None:
                    break
                most = room(line.state)
                need = min(waiter.weight, most)
                if line.state.inflight + need > most:
                    break  # nobody behind it may have what it waits for
                self._grant(waiter, line, need, now)
        return self._count != count

    def _next(self, line: Line, now: float) -> Waiter | None:
        best: Waiter | None = None
        for waiter in line.waiting:
            if waiter.pending or self._at_limit(waiter) or (waiter.weight > 1 and self._better_off(waiter, line, now)):
                continue
            if best is None or rank(waiter) < rank(best):
                best = waiter
        return best

    def _better_off(self, waiter: Waiter, line: Line, now: float) -> bool:
        """Does this heavy one not fit here, and another of its backends has more room? Then it waits there, and holds
        up nobody here."""
        free = room(line.state) - line.state.inflight
        if waiter.weight <= free or room(line.state) == free:
            return False
        others = (state for state in waiter.choices if state is not line.state)
        return any(is_open(state, now) and room(state) - state.inflight > free for state in others)

    def _grant(self, waiter: Waiter, line: Line, slots: int, now: float, key: str = "") -> None:
        waiter.granted = self._take(line, slots, now, waiter.client, waiter.limit, key)
        self._leave(waiter)
        self._count += 1
        for other in line.waiting:
            if other.client == waiter.client:
                other.turn = self._count
        waiter.wake()

    def _why_full(self, waiter: Waiter, now: float) -> str | None:
        """Why one that has just come (and joined) may not wait."""
        lines = [self._line(state) for state in waiter.choices]
        own = 1 / len(lines) if lines else 0.0
        if all(line.share() - own >= line.state.backend.queue.length for line in lines):
            return "too many requests wait already"
        seconds = self.expected(waiter, now)
        known = all(line.service is not None for line in lines)
        if known and seconds is not None and now + seconds > waiter.deadline:
            return f"the wait would be about {seconds:.0f} s, longer than allowed"
        return None

    def _ahead(self, waiter: Waiter, lines: list[Line]) -> int:
        """Sequences that go before one that has just come: its client's own, and by turns as many of each other."""
        of: dict[str, list[int]] = {}
        before = 0
        for other in dict.fromkeys(w for line in lines for w in line.waiting):
            if other is waiter or (other.batch and not waiter.batch):
                continue
            if waiter.batch and not other.batch:
                before += other.weight
            else:
                of.setdefault(other.client, []).append(other.weight)
        own = of.pop(waiter.client, [])
        return before + sum(own) + sum(sum(weights[: len(own) + 1]) for weights in of.values())


def rank(waiter: Waiter) -> tuple[bool, bool, int, int]:
    """The smallest is next."""
    return (waiter.batch, not waiter.returning, waiter.turn, waiter.place)


def room(state: BackendState) -> int:
    """Slots that we may use: all but those that others hold there, and at most our share; never none."""
    foreign = state.foreign
    most = state.slots if not foreign else max(1, state.slots - foreign)
    return most if state.sharers == 1 else max(1, min(most, state.slots // state.sharers))


def is_full(state: BackendState, weight: int) -> bool:
    """Is there no room for so much more?"""
    most = room(state)
    return state.under_way + min(weight, most) > most


def is_open(state: BackendState, now: float) -> bool:
    """May a request be sent there now, if there is room?"""
    health = state.health
    return state.cooldown_until <= now and (health.state is State.READY or health.usable(now))


def looks(state: BackendState, now: float) -> str:
    """What a plan would make of it, in a word: another word = another plan."""
    if state.cooldown_until > now:
        return "cooldown"
    health = state.health
    if not health.usable(now):
        return "trial" if health.trial else unavailable(state, now)[0]
    if health.state is not State.SUSPECT:
        return "usable"
    return "due" if health.due(now) else "suspect"
