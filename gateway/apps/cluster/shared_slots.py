"""Slots that gateways share: reports to Redis which requests wait here and which slots are held, and passes its
grants to the waiting set (gateway/admission/scheduler.py). No socket and no task here: operations go out by
`pending_operations`, answers come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.accounting.accounts import RateLimits, limit_error
from gateway.admission.backend_queue import SlotGrant, Waiter
from gateway.admission.capacity import capacity, is_full, total_capacity
from gateway.admission.scheduler import Scheduler
from gateway.apps.cluster.redis_connection import Batch, Operation, ignore, key_of
from gateway.domain.backend import BackendState

LOOK_AGE = 0.5  # seconds after Redis is lost until a probe of an engine shows all requests begun before the loss
# (backend, its slots in use, those held here, those held by each other gateway that holds any)
Load = tuple[str, int, int, list[int]]
LEASE = 8.0  # seconds after which slots that a gateway was last known to hold do not count any more


class SharedSlots:
    """The `SlotSharing` of our waiting set. `wake` is called when there is something to send.

    A waiter has a key while it is registered. When its request changes it is registered again under a new key (`was`
    names the old one), so that a grant for the old request is not taken for the new one.
    """

    def __init__(
        self,
        gateway: str,
        scheduler: Scheduler,
        limits: RateLimits,
        states: Callable[[], Mapping[str, BackendState]],
        wake: Callable[[], None],
    ) -> None:
        self.joined = False
        self._gateway = gateway
        self._scheduler = scheduler
        self._limits = limits
        self._states = states
        self._wake = wake
        self._keys = 0
        self._held: dict[str, SlotGrant] = {}  # by key
        # By key: the waiters that are registered in Redis, with the backends they wait for.
        self._registered: dict[str, tuple[Waiter, tuple[BackendState, ...]]] = {}
        self._to_register: dict[Waiter, None] = {}
        self._to_unregister: dict[Waiter, None] = {}  # registered, but no longer waiting: to be dropped
        self._drops: list[str] = []
        self._used: list[Operation] = []
        self._kept_shares: dict[str, int] = {}  # backend -> slots that this gateway could use when it last served alone
        # Since when this gateway serves alone, and until when the slots that the others held then still count.
        self._alone_since = self._until = 0.0

    # -- reports of our waiting set (scheduler.SlotSharing) -------------------------------------------------------

    def key(self) -> str:
        self._keys += 1
        return f"{self._gateway}:{self._keys}"

    def enqueued(self, waiter: Waiter) -> None:
        if not self.joined or waiter.pending:
            return
        if waiter in self._to_unregister:
            del self._to_unregister[waiter]
            if self._registered[waiter.key][1] == waiter.choices:
                return  # registered with the same backends already
        self._to_register[waiter] = None
        self._wake()

    def dequeued(self, waiter: Waiter) -> None:
        self._to_register.pop(waiter, None)
        if waiter.key not in self._registered:
            return
        if waiter.granted is not None and waiter.granted.key == waiter.key:
            del self._registered[waiter.key]
            waiter.key = ""
        else:
            self._to_unregister[waiter] = None
            self._wake()

    def acquired(self, held: SlotGrant, *, limited: bool) -> None:
        if limited or held.state.known_slots is not None:
            self._held[held.key] = held

    def released(self, held: SlotGrant) -> None:
        if self._held.pop(held.key, None) is not None and self.joined:
            self._drops.append(held.key)
            self._wake()

    def settled(self, waiter: Waiter | None, estimate: int, tokens: int) -> None:
        """A request of a client with a `tpm` limit has ended, with `tokens` instead of the estimate."""
        if waiter is not None and waiter.counted and tokens != estimate and self.joined:
            self._used.append(("used", waiter.client.partition("/")[0], waiter.counted, tokens - estimate))
            self._wake()

    # -- operations to send ---------------------------------------------------------------------------------------

    def pending_operations(self) -> Batch:
        """The operations to send now, each with the callback for its answer."""
        found: Batch = [(op, ignore) for op in self._used]
        for waiter in self._to_unregister:
            del self._registered[waiter.key]
            self._drops.append(waiter.key)
            waiter.key = ""
        found += [(("drop", key), ignore) for key in self._drops]
        found += [self._acquire_operation(waiter) for waiter in self._to_register]
        self._used, self._drops, self._to_unregister, self._to_register = [], [], {}, {}
        return found

    def _acquire_operation(self, waiter: Waiter) -> tuple[Operation, Callable[[Any], None]]:
        was, waiter.key = waiter.key, self.key()
        key = waiter.key
        self._registered.pop(was, None)
        self._registered[key] = waiter, waiter.choices
        choices = list({slots_key(state): total_capacity(state) for state in waiter.choices}.items())
        quota = waiter.quota
        user_rpm = 0 if quota is None or quota.user is None else quota.user.rpm or 0
        counts = () if quota is None else (quota.client.rpm or 0, quota.client.tpm or 0, quota.tokens, user_rpm)
        may_wait, within = waiter.full is None, waiter.within or 0
        operation = ("acquire", key, was, *_rank(waiter), waiter.weight, choices, may_wait, counts, within)
        return operation, lambda answer: self._answered(waiter, key, answer)

    def renewal(self, knew: int, now: float | None = None) -> Operation:
        """Everything that this gateway holds. `knew`: gateways in the cluster when this one was last a member; 0 =
        it is one now. A gateway that served alone also sends how many slots it may use alone, and for how long."""
        leases = [(key, slots_key(held.state), held.slots, held.client) for key, held in self._held.items()]
        waiting = [(key, w, choices) for key, (w, choices) in self._registered.items() if w not in self._to_unregister]
        waiters = [(key, *_rank(w), w.weight, list(dict.fromkeys(map(slots_key, of)))) for key, w, of in waiting]
        states = [state for state in self._states().values() if state.backend.on is None]
        capacities = [(slots_key(state), total_capacity(state)) for state in states]
        if not knew or not self._alone_since:
            return ("renew", knew, leases, waiters, capacities, [], 0)
        caps = [(slots_key(state), capacity(state)) for state in states if state.known_slots is not None]
        left = max(0.0, self._until - (time.monotonic() if now is None else now))
        return ("renew", knew, leases, waiters, capacities, caps, round(left * 1000))

    # -- answers and messages -------------------------------------------------------------------------------------

    def renewed(self, loads: list[Load], granted: list[tuple[str, str, int]]) -> None:
        """The answer to a renewal: the load of each backend, and grants whose message was lost."""
        before = {state.name: state.shared.elsewhere for state in self._states().values()}
        self._apply_loads(loads)
        for state in self._states().values():
            state.shared.elsewhere_lately = max(state.shared.elsewhere, before[state.name])
        for key, backend, slots in granted:
            self.granted(key, backend, slots)

    def held(self, loads: list[tuple[str, list[tuple[str, int]]]]) -> None:
        """A message about backends where a gateway now holds more than its share, or does not any more: the slots of
        each gateway there."""
        for backend, holders in loads:
            state = self._state(backend)
            if state is not None:
                state.shared.others = tuple(slots for gateway, slots in holders if gateway != self._gateway)

    def granted(self, key: str, backend: str, slots: int) -> None:
        """Slots for the request that waits under this key. If it no longer waits, its registration is being dropped,
        which releases the slots."""
        waiter, choices = self._registered.get(key, (None, ()))
        if waiter is None or waiter in self._to_unregister:
            return
        state = next((one for one in choices if slots_key(one) == backend and self._is_current(one)), None)
        now = time.monotonic()
        if state is not None and self._scheduler.accept_grant(waiter, state, slots, key, now):
            return
        if state is not None:
            # The slots cannot be used: requests that watch the backend are planned again.
            self._scheduler.changed(state, now)
        if key in self._registered and waiter not in self._to_unregister:
            self._to_register[waiter] = None
            self._wake()

    def _answered(self, waiter: Waiter, key: str, answer: list[Any]) -> None:
        if answer[0] == "limited":
            self._limited(waiter, *answer[1:])
            return
        if waiter.quota is not None:
            waiter.quota, waiter.counted = None, answer[1]
        if answer[0] == "granted":
            self._apply_loads(answer[4])
            self.granted(key, answer[2], answer[3])
        elif answer[0] == "full":
            self._refuse(waiter, waiter.full)
        else:
            waiter.ticket, waiter.full = (answer[2], answer[3]), None
            self._waits_on(waiter, answer[4])

    def _waits_on(self, waiter: Waiter, loads: list[Load]) -> None:
        """The request has to wait. If this gateway did not know that all slots are taken, other backends may fit
        better."""
        before = [is_full(state, waiter.weight) for state in waiter.choices]
        self._apply_loads(loads)
        if before != [is_full(state, waiter.weight) for state in waiter.choices]:
            self._scheduler.replan(waiter, time.monotonic())

    def _limited(self, waiter: Waiter, requests_wait: float, tokens_wait: float, user_wait: float) -> None:
        quota = waiter.quota
        assert quota is not None
        for client in (quota.client, *filter(None, (quota.user,))):
            self._limits.uncount(client.name, quota.at, time.monotonic())
        if quota.user is not None and user_wait > max(requests_wait, tokens_wait):
            self._refuse(waiter, limit_error(quota.user, user_wait, 0.0))
        else:
            self._refuse(waiter, limit_error(quota.client, requests_wait, tokens_wait))

    def _refuse(self, waiter: Waiter, reason: Exception | None) -> None:
        """The request is not registered in Redis; end its wait where there is a reason."""
        self._registered.pop(waiter.key, None)
        self._to_unregister.pop(waiter, None)
        waiter.key = ""
        if reason is not None:
            self._scheduler.refuse(waiter, reason)

    def _apply_loads(self, loads: list[Load]) -> None:
        for backend, total, ours, others in loads:
            state = self._state(backend)
            if state is not None:
                state.shared.others = tuple(others)
                state.shared.elsewhere = total - ours
                state.shared.elsewhere_lately = max(state.shared.elsewhere_lately, state.shared.elsewhere)

    def _state(self, key: str) -> BackendState | None:
        name = key.partition(" ")[0]
        state = self._states().get(name)
        return state if state is not None and slots_key(state) == key else None

    def _is_current(self, state: BackendState) -> bool:
        return self._states().get(state.name) is state

    # -- joined or alone ------------------------------------------------------------------------------------------

    def join(self) -> None:
        """The gateways decide together from now on."""
        self.joined, self._scheduler.decides = True, False
        for state in self._states().values():
            state.shared.sharers, state.shared.alone = 1, None
        for waiter in self._scheduler.waiters:
            self.enqueued(waiter)

    def serve_alone(self, gateways: int, now: float | None = None) -> None:
        """This gateway serves alone from now on, one of `gateways`: each has its share of the slots, or what is left
        of it until `LEASE` seconds have passed."""
        now = time.monotonic() if now is None else now
        self.joined, before = False, self._kept_shares if now < self._until else {}
        self._alone_since, self._until = now, now + LEASE
        for waiter, _ in self._registered.values():
            waiter.key = ""
        self._registered, self._to_register, self._to_unregister, self._drops, self._used = {}, {}, {}, [], []
        for state in self._states().values():
            state.shared.sharers, state.shared.elsewhere, state.shared.elsewhere_lately = gateways, 0, 0
            if state.known_slots is not None:
                others = next((one for one in state.siblings if one.name == state.backend.on), state).shared.others
                state.shared.alone = slots_alone(state.slots, gateways, state.engine_inflight, others)
                state.shared.alone = min(state.shared.alone, before.get(state.name, state.shared.alone))
        alone = {state.name: state.shared.alone for state in self._states().values()}
        self._kept_shares = {name: slots for name, slots in alone.items() if slots is not None}
        self._scheduler.serve_alone(now)

    def tick(self, now: float) -> None:
        """Use the full share where the slots of the other gateways have expired."""
        if self.joined:
            return
        freed = False
        for state in self._states().values():
            if state.shared.alone is not None and (now >= self._until or self._is_idle(state)):
                state.shared.alone, freed = None, True
                self._kept_shares.pop(state.name, None)
        if freed:
            self._scheduler.serve_alone(now)

    def _is_idle(self, state: BackendState) -> bool:
        """Has the engine reported no work at all since this gateway serves alone?"""
        last = state.progress.last
        return last is not None and last.at >= self._alone_since + LOOK_AGE and not last.running + last.waiting


def _rank(waiter: Waiter) -> tuple[str, int, bool, bool, int, int]:
    """The order of waiting requests, in the script's form."""
    return (waiter.client, waiter.limit or 0, waiter.batch, waiter.returning, *waiter.ticket)


def slots_key(state: BackendState) -> str:
    """The name among gateways of the engine whose slots the backend uses: an adapter's is that of its host."""
    backend = state.backend
    return key_of(backend) if backend.on is None else " ".join((backend.on, backend.engine, backend.url or ""))


def share_of(slots: int, gateways: int) -> int:
    return max(1, slots // gateways)


def slots_alone(slots: int, gateways: int, ours: int, others: Sequence[int]) -> int:
    """`ours`, `others`: slots that this gateway and each other one held when the gateways were last connected;
    gateways that are missing held none. A gateway above its share keeps its slots until its requests end; gateways
    below their share start that many fewer, evenly where possible. So all together stay within `slots` (within the
    number of gateways where there are fewer slots than gateways), even if a gateway did not receive the reports of
    the last releases."""
    gateways = max(gateways, len(others) + 1)
    share = share_of(slots, gateways)
    if ours >= share:
        return share
    held = [ours, *others, *[0] * (gateways - 1 - len(others))]
    excess = sum(max(share, one) for one in held) - max(slots, gateways)
    less = 0
    while sum(min(less, max(0, share - one)) for one in held) < excess and less < share:
        less += 1
    return max(ours, share - less)
