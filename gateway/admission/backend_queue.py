"""The queue of one backend: which request is next, how many are ahead of a new one, and how long the wait will be.

Interactive requests go before batch requests. Within each class, requests that return from a failed attempt go
first; the others take turns between clients. The turn of a request is its arrival, or the last time that a slot went
to another request of the same client where both wait, whichever is later. So a client with a hundred waiting
requests is served once before a client that has just arrived, and late arrivals cannot starve early ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.admission.capacity import capacity, is_open
from gateway.admission.waiter import Waiter
from gateway.domain.backend import BackendState


@dataclass(slots=True, eq=False)
class BackendQueue:
    """The requests that wait for one backend, and how long its requests took. Dicts serve as ordered sets."""

    state: BackendState
    waiting: dict[Waiter, None] = field(default_factory=dict)
    watching: dict[Waiter, None] = field(default_factory=dict)
    availability_key: str = ""  # as of the last check, while a request watches the backend
    service_time: float | None = None  # seconds that requests have lately held their slots
    freed_at: float = 0.0  # when slots became free last, or the first one was taken

    def waiting_share(self) -> float:
        """Requests that wait for this backend; a request that waits for n backends counts as 1/n."""
        return sum(1 / len(w.choices) for w in self.waiting)

    def next(self, at_limit: Callable[[Waiter], bool], now: float) -> Waiter | None:
        """The request that gets the next free slots of this backend. `at_limit`: has the client of a request reached
        `max_inflight`?"""
        best: Waiter | None = None
        for waiter in self.waiting:
            if waiter.pending or at_limit(waiter) or (waiter.weight > 1 and is_better_off(waiter, self.state, now)):
                continue
            if best is None or rank(waiter) < rank(best):
                best = waiter
        return best


def rank(waiter: Waiter) -> tuple[bool, bool, int, int]:
    """Sort key: the request with the smallest one is next."""
    return (waiter.batch, not waiter.returning, waiter.turn, waiter.place)


def is_better_off(waiter: Waiter, state: BackendState, now: float) -> bool:
    """True for a request of several sequences that does not fit here while another of its backends has more free slots:
    it waits there, and delays no request here."""
    free = capacity(state) - state.inflight
    if waiter.weight <= free or capacity(state) == free:
        return False
    others = (other for other in waiter.choices if other is not state)
    return any(is_open(other, now) and capacity(other) - other.inflight > free for other in others)


def seconds_until(waiter: Waiter, queues: Sequence[BackendQueue], now: float) -> float | None:
    """Expected seconds until the first of these backends is free for a request that arrives now; None = unknown.

    Computed from how long requests have lately held a slot, and from the number of requests ahead. Before any request
    has ended: the time since the slots were taken."""
    rate = sum(
        capacity(queue.state) / max(queue.service_time, 0.001) for queue in queues if queue.service_time is not None
    )
    if not rate:
        return min((now - queue.freed_at for queue in queues if queue.freed_at), default=None)
    return (ahead(waiter, queues) + waiter.weight) / rate


def ahead(waiter: Waiter, queues: Sequence[BackendQueue]) -> int:
    """Sequences ahead of a request that arrives now: those of its own client, and as many of each other client."""
    of: dict[str, list[int]] = {}
    before = 0
    for other in dict.fromkeys(w for queue in queues for w in queue.waiting):
        if other is waiter or (other.batch and not waiter.batch):
            continue
        if waiter.batch and not other.batch:
            before += other.weight
        else:
            of.setdefault(other.client, []).append(other.weight)
    own = of.pop(waiter.client, [])
    return before + sum(own) + sum(sum(weights[: len(own) + 1]) for weights in of.values())


def why_full(waiter: Waiter, queues: Sequence[BackendQueue], seconds: float | None, now: float) -> str | None:
    """Why a request that has just joined these queues may not wait; None = it may. `seconds`: its expected wait."""
    own = 1 / len(queues) if queues else 0.0
    if all(queue.waiting_share() - own >= queue.state.backend.queue.length for queue in queues):
        return "too many requests wait already"
    known = all(queue.service_time is not None for queue in queues)
    if known and seconds is not None and now + seconds > waiter.deadline:
        return f"the wait would be about {seconds:.0f} s, longer than allowed"
    return None
