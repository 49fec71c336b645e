"""The line before one backend: who is next, how many go before one that has just come, and how long that takes.

Interactive goes before batch; in each of the two first those that come back from a failed attempt; then by turns
between clients. A request's turn is its arrival, or the last time that a slot was given to another request of the same
client where both wait, whichever is later. So a client with a hundred waiting requests is served once before one that
has just come, and nobody who comes later can push in again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.admission.capacity import is_open, room
from gateway.admission.waiter import Waiter
from gateway.domain.backend import BackendState


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

    def next(self, at_limit: Callable[[Waiter], bool], now: float) -> Waiter | None:
        """Who gets what becomes free here. `at_limit`: its client has as many requests under way as it may."""
        best: Waiter | None = None
        for waiter in self.waiting:
            if waiter.pending or at_limit(waiter) or (waiter.weight > 1 and is_better_off(waiter, self.state, now)):
                continue
            if best is None or rank(waiter) < rank(best):
                best = waiter
        return best


def rank(waiter: Waiter) -> tuple[bool, bool, int, int]:
    """The smallest is next."""
    return (waiter.batch, not waiter.returning, waiter.turn, waiter.place)


def is_better_off(waiter: Waiter, state: BackendState, now: float) -> bool:
    """Does this heavy one not fit here, and another of its backends has more room? Then it waits there, and holds
    up nobody here."""
    free = room(state) - state.inflight
    if waiter.weight <= free or room(state) == free:
        return False
    others = (other for other in waiter.choices if other is not state)
    return any(is_open(other, now) and room(other) - other.inflight > free for other in others)


def seconds_until(waiter: Waiter, lines: Sequence[Line], now: float) -> float | None:
    """How long it waits for the first of these backends, if it came now; None = nothing tells.

    By how long requests have lately held a slot, and by how many are before it. Before any has ended: as long
    as none has."""
    rate = sum(room(line.state) / max(line.service, 0.001) for line in lines if line.service is not None)
    if not rate:
        return min((now - line.freed for line in lines if line.freed), default=None)
    return (ahead(waiter, lines) + waiter.weight) / rate


def ahead(waiter: Waiter, lines: Sequence[Line]) -> int:
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


def why_full(waiter: Waiter, lines: Sequence[Line], seconds: float | None, now: float) -> str | None:
    """Why one that has just come, and stands in these lines, may not wait. `seconds`: until it would get its slots."""
    own = 1 / len(lines) if lines else 0.0
    if all(line.share() - own >= line.state.backend.queue.length for line in lines):
        return "too many requests wait already"
    known = all(line.service is not None for line in lines)
    if known and seconds is not None and now + seconds > waiter.deadline:
        return f"the wait would be about {seconds:.0f} s, longer than allowed"
    return None
