"""A waiting set with made-up requests: no gateway, no clock, no tasks."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.admission.backend_queue import SlotGrant, Waiter
from gateway.admission.scheduler import Scheduler
from gateway.config.snapshot import QueueSettings
from gateway.domain.backend import BackendState
from tests.routing.parts import NOW, backend

FOREVER = NOW + 1e9


def place(name: str, slots: int = 1, length: int = 1000) -> BackendState:
    return backend(name, slots=slots, queue=QueueSettings(length))


@dataclass
class Office:
    """A scheduler and what it did: `served` are the names of requests in the order in which they got slots."""

    scheduler: Scheduler = field(default_factory=Scheduler)
    now: float = NOW
    served: list[str] = field(default_factory=list)
    replanned: list[str] = field(default_factory=list)
    woken: dict[str, int] = field(default_factory=dict)
    waiters: dict[str, Waiter] = field(default_factory=dict)

    def waiter(
        self, name: str, *choices: BackendState, client: str = "", weight: int = 1, batch: bool = False,
        deadline: float = FOREVER, limit: int | None = None,
    ) -> Waiter:  # fmt: skip
        """One that takes any of `choices` and is planned as before when one of them changes."""

        def wake() -> None:
            self.woken[name] = self.woken.get(name, 0) + 1
            if waiter.granted is not None:
                self.served.append(name)

        def replan(_: float) -> bool:
            self.replanned.append(name)
            return True

        waiter = Waiter(client or name, deadline, wake, replan, choices, choices, weight, batch, limit)
        self.waiters[name] = waiter
        return waiter

    def ask(self, name: str, *choices: BackendState, **more: object) -> Waiter:
        """The same, and it comes now."""
        waiter = self.waiter(name, *choices, **more)  # type: ignore[arg-type]  # passed on as they are
        self.scheduler.enqueue(waiter, self.now)
        return waiter

    def end(self, name: str, *, after: float = 0.0) -> None:
        """A request that was served ends."""
        self.now += after
        waiter = self.waiters[name]
        self.scheduler.release(held(waiter), self.now)
        waiter.granted = None


def held(waiter: Waiter) -> SlotGrant:
    assert waiter.granted is not None
    return waiter.granted
