"""Which request gets which slots, and which requests wait: the one waiting set of a gateway.

A pure structure: no clock, no task, no sleep. Time is passed in (monotonic seconds), and the one effect is the
`wake` of a waiter. The slots in use are `BackendState.inflight`, so slots that other code takes are respected too.
Where other gateways front the same backends, `sharing` reports to them which requests wait and which slots are held;
while the gateways decide together (`decides` is False) no slot is granted here. backend_queue.py has the order of the
requests that wait for one backend.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gateway.admission.backend_queue import BackendQueue, QueueFull, SlotGrant, Waiter, seconds_until, why_full
from gateway.admission.capacity import availability_key, capacity, is_full, is_open, pool_has_room
from gateway.domain.backend import BackendState

LEARN = 0.2  # weight of one more request in the service time


class SlotSharing(Protocol):
    """Slots that other gateways in front of the same backends share with this one."""

    def enqueued(self, waiter: Waiter) -> None:
        """The request waits, perhaps for other backends than before."""

    def dequeued(self, waiter: Waiter) -> None:
        """The request does not wait any more."""

    def acquired(self, held: SlotGrant, *, limited: bool) -> None:
        """Slots were taken. `limited`: the client has a limit."""

    def released(self, held: SlotGrant) -> None:
        """The slots are free again."""

    def key(self) -> str:
        """A key for slots that are taken without asking the other gateways."""

    def settled(self, waiter: Waiter | None, estimate: int, tokens: int) -> None:
        """A request of a client with a tpm limit has ended, and used `tokens` instead of the estimate."""


class Scheduler:
    """Slots are acquired by `try_acquire` or `enqueue` and returned by `release`. All calls get the time `now`."""

    def __init__(self) -> None:
        self.sharing: SlotSharing | None = None  # None = no other gateways
        self.decides = True
        self.waiters: dict[Waiter, None] = {}
        # By id of the state: for a while there may be two backends of one name.
        self._queues: dict[int, BackendQueue] = {}
        # Client -> requests with slots; counted for all clients, because an edit may add a limit.
        self._running: dict[str, int] = {}
        self._count = 0

    # -- acquire and release --------------------------------------------------------------------------------------

    def try_acquire(
        self,
        state: BackendState,
        weight: int,
        now: float,
        client: str = "",
        limit: int | None = None,
        tokens: int = 0,
        within: int | None = None,
    ) -> SlotGrant | None:
        """Slots, if they are free, `tokens` fit, and no request waits for this backend. None also where other gateways
        have to be asked."""
        if not self.decides and (limit is not None or state.known_slots is not None):
            return None
        queue = self._queues.get(id(state))
        if queue is None:
            queue = self._queue(state)
        if queue.waiting or not is_open(state, now):
            return None
        if limit is not None and self._running.get(client, 0) >= limit:
            return None
        if within is not None and self._running.get(client.partition("/")[0], 0) >= within:
            return None
        most = capacity(state)
        need = weight if weight <= most else most
        running = state.engine_inflight if state.siblings else state.inflight
        if not most or running + need > most or (tokens and not pool_has_room(state, tokens)):
            return None
        return self._acquire(queue, need, now, client, limit, tokens=tokens)

    def enqueue(self, waiter: Waiter, now: float) -> bool:
        """Let the request wait. True = its slots were granted at once. Raises `QueueFull`, on the first arrival
        only."""
        first = not waiter.place
        if first:
            self._count += 1
            waiter.place = waiter.turn = self._count
        waiter.granted, waiter.late, waiter.refused = None, False, None
        self._join(waiter, now)
        if not self.decides:
            waiter.full = self._full(waiter, now) if first else None
            if waiter.full is not None and waiter.pending:  # no backend to register for at the other gateways
                self._leave(waiter)
                raise waiter.full
            return False
        self._serve(self._queues_of(waiter), now)
        if waiter.granted is not None:
            return True
        if first and (full := self._full(waiter, now)) is not None:
            self._leave(waiter)
            raise full
        return False

    def release(self, held: SlotGrant, now: float, *, served: bool = True) -> None:
        """Give slots back; the next request gets them. `served`: the duration is a measure for later requests."""
        held.state.reserved_tokens -= held.tokens
        if self.sharing is not None:
            self.sharing.released(held)
        state = held.state
        queue = self._queues.get(id(state)) or self._queue(state)
        state.inflight -= held.slots
        queue.freed_at = now
        if served:
            took, known = now - held.since, queue.service_time
            queue.service_time = took if known is None else known + (took - known) * LEARN
        running = self._running[held.client] - 1
        if running:
            self._running[held.client] = running
        else:
            del self._running[held.client]
        if "/" in held.client:  # a user: those of its client are counted together too
            self._count_of_users(held.client, -1)
        if self.waiters:
            self._serve([queue, *map(self._queue, state.siblings)], now)

    def withdraw(self, waiter: Waiter, now: float) -> None:
        """The request does not wait any more. Slots that were granted meanwhile go to the next one."""
        if waiter in self.waiters:
            queues = self._queues_of(waiter)
            self._leave(waiter)
            self._serve(queues, now)  # requests of fewer sequences may have waited behind it
        elif waiter.granted is not None:
            held, waiter.granted = waiter.granted, None
            self.release(held, now, served=False)

    # -- decisions of all gateways --------------------------------------------------------------------------------

    def accept_grant(self, waiter: Waiter, state: BackendState, slots: int, key: str, now: float) -> bool:
        """Grant slots that the gateways decided together. False = not accepted: the request has left, or cannot use
        them."""
        if waiter not in self.waiters or waiter.pending or state not in waiter.choices or not is_open(state, now):
            return False
        self._grant(waiter, self._queue(state), slots, now, key)
        return True

    def refuse(self, waiter: Waiter, reason: Exception) -> None:
        """End the wait of a request with this reason."""
        if waiter in self.waiters:
            self._leave(waiter)
            waiter.refused = reason
            waiter.wake()

    def replan(self, waiter: Waiter, now: float) -> None:
        """Plan this one request again."""
        if waiter in self.waiters:
            self._leave(waiter)
            if waiter.replan(now):
                self._join(waiter, now)
            else:
                waiter.wake()

    def serve_alone(self, now: float) -> None:
        """The other gateways cannot be asked any more: waiting requests are served here, or refused if the queue is
        full."""
        self.decides = True
        self._serve([queue for queue in self._queues.values() if queue.waiting], now)
        for waiter in [waiter for waiter in self.waiters if waiter.full is not None]:
            assert waiter.full is not None
            self.refuse(waiter, waiter.full)

    # -- time and changes -----------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Check deadlines, backends that changed without a report, and capacity that became free without one."""
        for waiter in [w for w in self.waiters if now >= w.deadline]:
            if waiter in self.waiters:
                queues = self._queues_of(waiter)
                self._leave(waiter)
                waiter.late = True
                waiter.wake()
                self._serve(queues, now)
        for queue in list(self._queues.values()):
            if queue.watching and queue.availability_key != availability_key(queue.state, now):
                self.changed(queue.state, now)
        self._serve([queue for queue in self._queues.values() if queue.waiting], now)

    def changed(self, state: BackendState, now: float) -> None:
        """A backend went away, came back, or ended a pause: requests that watch it are planned again, in arrival
        order."""
        queue = self._queue(state)
        queue.availability_key = availability_key(state, now)
        for waiter in list(queue.watching):
            self.replan(waiter, now)
        self._serve([other for other in self._queues.values() if other.waiting], now)

    def forget(self, state: BackendState) -> None:
        """The backend is gone for good: no slot is held there, and no request may go there."""
        self._queues.pop(id(state), None)

    # -- figures --------------------------------------------------------------------------------------------------

    def is_busy(self, state: BackendState, weight: int, tokens: int = 0) -> bool:
        """Must a request that arrives now wait for this backend?"""
        queue = self._queues.get(id(state))
        return (queue is not None and bool(queue.waiting)) or is_full(state, weight, tokens)

    def refuses(self, waiter: Waiter, now: float) -> bool:
        """Would the queues not take this request, which has not joined any, and that is not served at once?"""
        queues = self._queues_of(waiter)
        fits = (not is_full(q.state, waiter.weight, waiter.tokens_at(q.state)) and not q.waiting for q in queues)
        return bool(queues) and not any(fits) and self._full(waiter, now) is not None

    def waited_for(self) -> list[BackendState]:
        """The backends that requests wait for."""
        return [queue.state for queue in self._queues.values() if queue.waiting]

    def depth(self) -> dict[str, int]:
        """Backend name -> requests that wait for it. A request that waits for several backends counts at each."""
        found: dict[str, int] = {}
        for queue in self._queues.values():
            found[queue.state.name] = found.get(queue.state.name, 0) + len(queue.waiting)
        return found

    def expected_wait(self, waiter: Waiter, now: float) -> float | None:
        """Expected seconds until the request gets slots if it arrived now; None = unknown."""
        if waiter.pending or self._at_limit(waiter):
            return None
        return seconds_until(waiter, self._queues_of(waiter), now)

    # -- internals ------------------------------------------------------------------------------------------------

    def _queue(self, state: BackendState) -> BackendQueue:
        queue = self._queues.get(id(state))
        if queue is None:
            queue = self._queues[id(state)] = BackendQueue(state)
        return queue

    def _queues_of(self, waiter: Waiter) -> list[BackendQueue]:
        return [self._queue(state) for state in waiter.choices]

    def _full(self, waiter: Waiter, now: float) -> QueueFull | None:
        """Why a request that has just joined may not wait; None = it may."""
        seconds = self.expected_wait(waiter, now)
        why = why_full(waiter, self._queues_of(waiter), seconds, now)
        return QueueFull(why, seconds) if why is not None else None

    def _acquire(
        self,
        queue: BackendQueue,
        slots: int,
        now: float,
        client: str,
        limit: int | None,
        key: str = "",
        tokens: int = 0,
    ) -> SlotGrant:
        state = queue.state
        if not state.inflight:
            queue.freed_at = now
        state.inflight += slots
        state.reserved_tokens += tokens
        self._running[client] = self._running.get(client, 0) + 1
        if "/" in client:
            self._count_of_users(client, 1)
        if self.sharing is None:
            return SlotGrant(state, slots, now, client, tokens=tokens)
        held = SlotGrant(state, slots, now, client, key or self.sharing.key(), tokens)
        self.sharing.acquired(held, limited=limit is not None)
        return held

    def _count_of_users(self, user: str, change: int) -> None:
        """Count what all users of the client of this user have under way."""
        client = user.partition("/")[0]
        running = self._running.get(client, 0) + change
        if running:
            self._running[client] = running
        else:
            del self._running[client]

    def _at_limit(self, waiter: Waiter) -> bool:
        if waiter.within is not None and self._running.get(waiter.client.partition("/")[0], 0) >= waiter.within:
            return True
        return waiter.limit is not None and self._running.get(waiter.client, 0) >= waiter.limit

    def _join(self, waiter: Waiter, now: float) -> None:
        self.waiters[waiter] = None
        for state in waiter.choices:
            self._queue(state).waiting[waiter] = None
        for state in waiter.watches:
            queue = self._queue(state)
            if not queue.watching:
                queue.availability_key = availability_key(state, now)
            queue.watching[waiter] = None
        if self.sharing is not None:
            self.sharing.enqueued(waiter)

    def _leave(self, waiter: Waiter) -> None:
        del self.waiters[waiter]
        for queue in self._queues.values():
            queue.waiting.pop(waiter, None)
            queue.watching.pop(waiter, None)
        if self.sharing is not None:
            self.sharing.dequeued(waiter)

    def _serve(self, queues: Iterable[BackendQueue], now: float) -> None:
        """Grant free slots to the next requests, backend by backend. Requests of several sequences, those that reserve
        tokens, and clients with a limit connect queues (a grant in one queue changes who is next in another): then all
        queues are served until no request gets slots any more."""
        if not self.decides:
            return
        tied = any(w.weight > 1 or w.limit is not None or w.within is not None or w.tokens for w in self.waiters)
        self._serve_once(queues, now)
        while tied and self._serve_once([queue for queue in self._queues.values() if queue.waiting], now):
            pass

    def _serve_once(self, queues: Iterable[BackendQueue], now: float) -> bool:
        """True = slots were granted."""
        count = self._count
        for queue in queues:
            while queue.waiting and is_open(queue.state, now):
                waiter = queue.next(self._at_limit, now)
                if waiter is None:
                    break
                most = capacity(queue.state)
                need = min(waiter.weight, most)
                tokens = waiter.tokens_at(queue.state)
                if not most or queue.state.engine_inflight + need > most or not pool_has_room(queue.state, tokens):
                    break  # no later request may overtake it
                self._grant(waiter, queue, need, now)
        return self._count != count

    def _grant(self, waiter: Waiter, queue: BackendQueue, slots: int, now: float, key: str = "") -> None:
        tokens = waiter.tokens_at(queue.state)
        waiter.granted = self._acquire(queue, slots, now, waiter.client, waiter.limit, key, tokens)
        self._leave(waiter)
        self._count += 1
        for other in queue.waiting:
            if other.client == waiter.client:
                other.turn = self._count
        waiter.wake()
