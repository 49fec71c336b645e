"""Ten thousand requests that are served, fail, leave and come too late, on backends that come and go, have other slots
and are taken out of routes.yaml: at the end nothing is held, nobody waits, and each has ended once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from gateway.admission.backend_queue import QueueFull, SlotGrant, Waiter
from gateway.admission.scheduler import Scheduler
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from tests.admission.scheduling import place
from tests.routing.parts import NOW

REQUESTS = 10_000


class Day:
    """By a fixed seed. Every request is a waiter that plans anew as a gateway would: among the backends that are up."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scheduler = Scheduler()
        self.now = NOW
        self.places = {"a": place("a", 4, length=32), "b": place("b", 2, length=32), "c": place("c", 1, length=4)}
        self.retired: list[BackendState] = []
        self.wants: dict[Waiter, list[str]] = {}
        self.outcomes: Counter[str] = Counter()
        self.running: list[tuple[Waiter, SlotGrant]] = []
        self.ends: dict[Waiter, int] = {}

    def run(self) -> None:
        for _ in range(REQUESTS):
            self.now += self.random.expovariate(1.0)
            self.arrive()
            for _ in range(self.random.randrange(3)):
                self.something()
        for state in self.places.values():
            state.health.state, state.foreign = State.READY, 0
            self.scheduler.changed(state, self.now)
        while self.running:
            self.finish(0)
        self.now += 1e6
        self.scheduler.tick(self.now)

    def arrive(self) -> None:
        client = self.random.choice(["hog", "hog", "hog", "x", "y", "capped"])
        waiter = Waiter(
            client,
            self.now + self.random.choice([20, 100, 1000]),
            lambda: self.woken(waiter),
            lambda _: self.replan(waiter),
        )
        waiter.weight = self.random.choice([1, 1, 1, 3, 9])
        waiter.batch = self.random.random() < 0.2
        waiter.limit = 2 if client == "capped" else None
        self.wants[waiter] = self.random.sample(list(self.places), self.random.randint(1, 3))
        self.ends[waiter] = 0
        if not self.replan(waiter):
            self.ended(waiter, "refused")
            return
        try:
            self.scheduler.enqueue(waiter, self.now)
        except QueueFull:
            self.ended(waiter, "full")

    def replan(self, waiter: Waiter) -> bool:
        waiter.watches = tuple(self.places[name] for name in self.wants[waiter])
        up = tuple(s for s in waiter.watches if s.health.state is State.READY)
        waiter.choices, waiter.pending = up or waiter.watches, not up
        return bool(up) or self.random.random() < 0.5

    def woken(self, waiter: Waiter) -> None:
        if waiter.granted is not None:
            self.running.append((waiter, waiter.granted))
        else:
            self.ended(waiter, "late" if waiter.late else "lost its last backend")

    def ended(self, waiter: Waiter, how: str) -> None:
        self.ends[waiter] += 1
        self.outcomes[how] += 1

    def something(self) -> None:
        roll = self.random.random()
        waiting = list(self.scheduler.waiters)
        if roll < 0.55 and self.running:
            self.finish(self.random.randrange(len(self.running)))
        elif roll < 0.65 and self.running:
            self.fail(self.random.randrange(len(self.running)))
        elif roll < 0.75 and waiting:
            waiter = self.random.choice(waiting)
            self.scheduler.withdraw(waiter, self.now)
            self.ended(waiter, "left")
        elif roll < 0.8 and self.running:  # it leaves before it knows that it has a slot
            waiter, _ = self.running.pop(self.random.randrange(len(self.running)))
            self.scheduler.withdraw(waiter, self.now)
            self.ended(waiter, "left with a slot")
        elif roll < 0.85:
            state = self.random.choice(list(self.places.values()))
            state.foreign = self.random.randrange(4)
        elif roll < 0.9:
            self.toggle(self.random.choice(list(self.places.values())))
        elif roll < 0.93:
            self.edit(self.random.choice(list(self.places.values())))
        else:
            self.scheduler.tick(self.now)

    def toggle(self, state: BackendState) -> None:
        state.health.state = State.READY if state.health.state is not State.READY else State.DOWN
        if self.random.random() < 0.5:
            self.scheduler.changed(state, self.now)

    def edit(self, state: BackendState) -> None:
        """routes.yaml gives it other slots, or says that it is somewhere else now."""
        if self.random.random() < 0.5:
            state.define(replace(state.backend, slots=self.random.randint(1, 4)))
            return
        self.places[state.name] = place(state.name, state.slots, length=state.backend.queue.length)
        state.health.remove(self.now)
        self.scheduler.changed(state, self.now)
        self.retired.append(state)

    def finish(self, number: int) -> None:
        waiter, held = self.running.pop(number)
        waiter.granted = None
        self.scheduler.release(held, self.now)
        self.ended(waiter, "served")

    def fail(self, number: int) -> None:
        waiter, held = self.running.pop(number)
        waiter.granted = None
        self.scheduler.release(held, self.now, served=False)
        waiter.returning = True
        if self.random.random() < 0.8 and self.replan(waiter):
            self.scheduler.enqueue(waiter, self.now)
        else:
            self.ended(waiter, "failed")


def test_after_ten_thousand_requests_all_counters_are_zero() -> None:
    day = Day(seed=11)
    day.run()
    assert len(day.retired) > 50, "too tame to show anything"
    assert {state.inflight for state in (*day.places.values(), *day.retired)} == {0}
    for state in day.retired:
        day.scheduler.forget(state)
    assert len(day.scheduler._queues) == len(day.places)
    assert (day.scheduler.waiters, day.scheduler._running, set(day.scheduler.depth().values())) == ({}, {}, {0})
    assert set(day.ends.values()) == {1}, "each ended once"
    assert sum(day.outcomes.values()) == REQUESTS
    kinds = {"served", "refused", "full", "late", "lost its last backend", "left", "left with a slot", "failed"}
    assert {kind for kind, count in day.outcomes.items() if count > 20} == kinds, "too tame to show anything"
