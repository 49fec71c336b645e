"""Made-up gateways that share slots by the real script in a real Redis: no sockets of their own, no tasks, and a clock
that is told. What they send goes out when the test says so, and messages arrive when it says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from gateway.accounting.accounts import RateLimits
from gateway.admission.backend_queue import QueueFull, SlotGrant, Waiter
from gateway.admission.capacity import is_open
from gateway.admission.scheduler import Scheduler
from gateway.apps.cluster.redis_connection import PREFIX, PRESENT, Operation, arguments, decode, key_of, source
from gateway.apps.cluster.shared_slots import SharedSlots
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from tests.admission.scheduling import place

SOON, FOREVER = 1e6, 1e12
SLOTS = {"a": 2, "b": 4}


class Place:
    """The Redis they share, with the time as it is told (seconds)."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.now = 1_700_000_000.0
        self.sha = client.script_load(source())

    def run(self, gateway: str, *operations: Operation) -> list[Any]:
        """The answers; ["stranger"] as the script says it."""
        args = arguments(gateway, PRESENT, operations, self.now)
        found: list[Any] = decode(self.client.evalsha(self.sha, 1, PREFIX, *args))
        return found

    def forget(self) -> None:
        self.client.flushall()
        self.sha = self.client.script_load(source())

    def left(self) -> set[str]:
        """The keys that hold slots, or who waits for them."""
        kinds = ("leases:", "inflight:", "running:", "waiters", "queue", "tied")
        found: list[bytes] = self.client.keys(f"{PREFIX}*")  # type: ignore[assignment]  # not of the asyncio client
        keys = [key.decode().removeprefix(PREFIX) for key in found]
        return {key for key in keys if key.startswith(kinds)}


class MadeUp:
    """One gateway. `served`: the waiters that have slots; `ended`: those that are through, with how."""

    def __init__(self, name: str, redis: Place, slots: dict[str, int]) -> None:
        self.name = name
        self.redis = redis
        self.scheduler = Scheduler()
        self.states = {backend: place(backend, count) for backend, count in slots.items()}
        self.slots = SharedSlots(name, self.scheduler, RateLimits(), lambda: self.states, lambda: None)
        self.scheduler.sharing = self.slots
        self.served: dict[str, SlotGrant] = {}
        self.order: list[str] = []
        self.waiters: dict[str, Waiter] = {}
        self.ended: dict[str, str] = {}
        self.knew = 1
        self.mailbox = redis.client.pubsub(  # type: ignore[no-untyped-call]  # redis has no type for it
            ignore_subscribe_messages=True
        )
        self.mailbox.subscribe(f"{PREFIX}to:{name}", f"{PREFIX}all")
        for _ in range(2):
            self.mailbox.get_message(timeout=5.0)  # that it has

    def close(self) -> None:
        self.mailbox.close()

    # -- what requests do -----------------------------------------------------------------------------------------

    def waiter(self, name: str, choices: Sequence[str], **more: Any) -> Waiter:
        states = tuple(self.states[choice] for choice in choices)

        def replan(now: float) -> bool:
            """Among the backends that are up; where none is, it waits for them to come."""
            up = tuple(state for state in states if is_open(state, now))
            waiter.choices, waiter.pending = up or states, not up
            return True

        waiter = Waiter(more.pop("client", name), FOREVER, lambda: self._woken(name), replan, watches=states)
        replan(SOON)
        for key, value in more.items():
            setattr(waiter, key, value)
        self.waiters[name] = waiter
        return waiter

    def ask(self, name: str, *choices: str, **more: Any) -> Waiter:
        """A request comes; it is asked for when the gateway sends."""
        waiter = self.waiter(name, choices or ("a",), **more)
        self.enqueue(waiter)
        return waiter

    def comes(self, name: str, *choices: str, **more: Any) -> Waiter:
        """A request comes, and is asked for at once."""
        waiter = self.ask(name, *choices, **more)
        self.go()
        return waiter

    def enqueue(self, waiter: Waiter) -> None:
        try:
            self.scheduler.enqueue(waiter, SOON)
        except QueueFull:
            self.ended[self.name_of(waiter)] = "full"

    def name_of(self, waiter: Waiter) -> str:
        return next(name for name, other in self.waiters.items() if other is waiter)

    def _woken(self, name: str) -> None:
        waiter = self.waiters[name]
        assert name not in self.served, "woken twice"
        if waiter.granted is not None:
            self.served[name] = waiter.granted
            self.order.append(name)
        else:
            self.ended[name] = "refused" if waiter.refused is not None else "nothing left"

    def end(self, name: str) -> None:
        """A request that was served ends."""
        waiter, held = self.waiters[name], self.served.pop(name)
        waiter.granted = None
        self.scheduler.release(held, SOON)
        self.ended[name] = "served"

    def leave(self, name: str) -> None:
        """The client of a request leaves, while it waits or before it knows that it has slots."""
        self.served.pop(name, None)
        self.scheduler.withdraw(self.waiters[name], SOON)
        self.ended[name] = "left"

    @property
    def waiting(self) -> list[str]:
        return [name for name, waiter in self.waiters.items() if waiter in self.scheduler.waiters]

    # -- to and from Redis ----------------------------------------------------------------------------------------

    def send(self) -> None:
        """Everything that is to be sent, until nothing is left; who was forgotten goes alone."""
        while self.slots.joined and (batch := self.slots.pending_operations()):
            answers = self.redis.run(self.name, *(operation for operation, _ in batch))
            if answers == ["stranger"]:
                self.serve_alone()
                return
            for (_, answer), value in zip(batch, answers, strict=True):
                answer(value)

    def receive(self, *, lost: bool = False) -> None:
        """Take in what has come; `lost`: it never arrived."""
        self.mailbox.ping()  # what was published before is read before its answer
        while (message := self.mailbox.get_message(timeout=5.0)) is not None and message["type"] != "pong":
            kind, *words = decode(message["data"])
            if lost or not self.slots.joined:
                continue
            if kind == "granted":
                self.slots.granted(*words)
            elif kind == "held":
                self.slots.held(words[1])

    def renew(self) -> None:
        """As every few seconds, with whatever else is to be sent; first of all it joins."""
        renewal = self.slots.renewal(0 if self.slots.joined else self.knew, self.redis.now)
        batch = self.slots.pending_operations() if self.slots.joined else []
        answers = self.redis.run(self.name, renewal, *(operation for operation, _ in batch))
        if answers == ["stranger"]:
            self.serve_alone()
            self.renew()
            return
        (present, loads, granted), *answers = answers
        self.slots.renewed(loads, granted)
        for (_, answer), value in zip(batch, answers, strict=True):
            answer(value)
        self.knew = max(self.knew, present)
        if not self.slots.joined:
            self.slots.join()

    def serve_alone(self) -> None:
        self.slots.serve_alone(self.knew, self.redis.now)

    def tick(self) -> None:
        """As a few times a second while Redis is away."""
        self.slots.tick(self.redis.now)

    def go(self) -> None:
        self.send()
        self.receive()
        self.send()

    # -- what is true here ----------------------------------------------------------------------------------------

    def inflight(self, backend: str) -> int:
        return self.states[backend].inflight


def settle(*gateways: MadeUp) -> None:
    """Until nothing more happens."""
    for _ in range(4):
        for gateway in gateways:
            gateway.go()


def lent(redis: Place, state: BackendState) -> int:
    """Slots of a backend that are lent, as Redis adds them up."""
    name = f"{PREFIX}inflight:{key_of(state.backend)}"
    values: list[bytes] = redis.client.hvals(name)  # type: ignore[assignment]  # not of the asyncio client
    return sum(map(int, values))


# -- what happens again and again -------------------------------------------------------------------------------------


def come(gateway: MadeUp, names: Sequence[str], *choices: str, **more: Any) -> None:
    """Requests come, and are asked for together."""
    for name in names:
        gateway.ask(name, *choices, **more)
    gateway.go()


def fill(gateway: MadeUp, *backends: str) -> None:
    """Requests a0, a1 of this gateway take all of a; b0 to b3 all of b."""
    for backend in backends:
        come(gateway, [f"{backend}{number}" for number in range(SLOTS[backend])], backend)
    assert len(gateway.served) == sum(SLOTS[backend] for backend in backends)


def falls(gateway: MadeUp, backend: str) -> None:
    """A gateway finds that a backend is down: who waits for it there plans anew."""
    state = gateway.states[backend]
    state.health.state = State.DOWN
    gateway.scheduler.changed(state, 0.0)
    gateway.go()


def later(seconds: float, *gateways: MadeUp) -> None:
    """Time passes; then each renews, and hears what that has brought it."""
    gateways[0].redis.now += seconds
    for gateway in gateways:
        gateway.renew()
        gateway.receive()


def served(*gateways: MadeUp) -> list[str]:
    return [name for gateway in gateways for name in gateway.served]
