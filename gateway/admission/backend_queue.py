"""The queue of one backend: which request is next, how many are ahead of a new one, and how long the wait will be.

Interactive requests go before batch requests. Within each class, requests that return from a failed attempt go
first; the others take turns between clients. The turn of a request is its arrival, or the last time that a slot went
to another request of the same client where both wait, whichever is later. So a client with a hundred waiting
requests is served once before a client that has just arrived, and late arrivals cannot starve early ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.admission.capacity import capacity, is_open
from gateway.config.snapshot import Client
from gateway.domain.backend import BackendState


class QueueFull(Exception):
    """The request may not wait. `seconds`: after which a retry makes sense; None = unknown."""

    def __init__(self, why: str, seconds: float | None) -> None:
        super().__init__(why)
        self.seconds = seconds


class SlotGrant(NamedTuple):
    """Slots of one backend that a request holds: how many, since when (monotonic seconds), for which client. `key`
    names the grant among gateways; `tokens` are reserved of the memory that the backend's slots share."""

    state: BackendState
    slots: int
    since: float
    client: str
    key: str = ""
    tokens: int = 0


class Quota(NamedTuple):
    """One request and its estimated tokens, counted once against limits of a client that gateways share. `at`: when
    this gateway counted it (monotonic seconds). `user`: of the client, where it has a limit of its own."""

    client: Client
    tokens: int
    at: float
    user: Client | None = None


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits for slots, or may have to. `choices` are the backends that can serve it, best first; with
    `pending` none of them can yet, and all are expected back. `watches` are the backends whose changes change its plan.

    `replan` is called when a watched backend has changed. It sets `choices` and `pending`, and returns False when no
    backend is left to wait for. `wake` is called when the wait is over: slots were granted (`granted`), the deadline
    has passed (`late`), the request was refused (`refused`), or no backend is left.
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
    within: int | None = None  # that of the client whose user it is
    pending: bool = False
    returning: bool = False  # from a failed attempt
    place: int = 0  # number of its arrival; kept when it waits again
    turn: int = 0
    tokens: Mapping[int, int] | None = None  # id of a choice whose slots share a memory -> tokens to reserve there
    granted: SlotGrant | None = None
    late: bool = False
    # if other gateways share the slots
    key: str = ""  # under which it is registered in Redis
    ticket: tuple[int, int] = (0, 0)  # its place and turn in Redis
    quota: Quota | None = None  # not counted yet
    counted: int = 0  # the second (of Redis) in which it was counted
    full: QueueFull | None = None  # why the queue does not accept it
    refused: Exception | None = None  # why it gets no slots

    def tokens_at(self, state: BackendState) -> int:
        """The tokens to reserve of the memory that this backend's slots share; 0 = they share none."""
        return 0 if self.tokens is None else self.tokens.get(id(state), 0)


LENGTHS_MOST = 4  # times `queue.length`: requests of all clients together


@dataclass(slots=True, eq=False)
class BackendQueue:
    """The requests that wait for one backend, and how long its requests took. Dicts serve as ordered sets."""

    state: BackendState
    waiting: dict[Waiter, None] = field(default_factory=dict)
    watching: dict[Waiter, None] = field(default_factory=dict)
    availability_key: str = ""  # as of the last check, while a request watches the backend
    service_time: float | None = None  # seconds that requests have lately held their slots
    freed_at: float = 0.0  # when slots became free last, or the first one was taken

    def is_full(self, waiter: Waiter) -> bool:
        """Do so many requests wait for this backend that this one, which has just joined, may not? A request that waits
        for n backends counts as 1/n. For interactive requests only interactive ones count. A full queue still takes the
        request of a client that has less than its part of it, where another client has more. Slots that the engine may
        soon be found to have count too."""
        length = self.state.backend.queue.length + self.state.slots_to_find
        of: dict[str, float] = {waiter.client: 0.0}
        for other in self.waiting:
            if other is not waiter and (waiter.batch or not other.batch):
                of[other.client] = of.get(other.client, 0.0) + 1 / len(other.choices)
        waiting, own = sum(of.values()), of[waiter.client]
        if waiting < length:
            return False
        return own >= length / len(of) or max(of.values()) < own + 2 or waiting >= length * LENGTHS_MOST

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
    if all(queue.is_full(waiter) for queue in queues):
        return "too many requests wait already"
    known = all(queue.service_time is not None for queue in queues)
    if known and seconds is not None and now + seconds > waiter.deadline:
        return f"the wait would be about {seconds:.0f} s, longer than allowed"
    return None
