"""Whatever comes in whatever order: no slot is lost or given twice, nobody is forgotten, and turns are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.admission.backend_queue import QueueFull, SlotGrant, Waiter, rank
from gateway.admission.capacity import capacity, is_open
from gateway.admission.scheduler import Scheduler
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from tests.admission.scheduling import place
from tests.routing.parts import NOW

SLOTS = (1, 2, 4)
LIMITS = {"free": None, "other": None, "third": None, "narrow": 2}

Ask = tuple[str, list[int], int, bool, float]
ASKS: st.SearchStrategy[Ask] = st.tuples(
    st.sampled_from(list(LIMITS)),
    st.lists(st.sampled_from(range(len(SLOTS))), min_size=1, max_size=3, unique=True),
    st.sampled_from([1, 1, 1, 2, 5]),  # weight
    st.sampled_from([False, False, True]),  # batch
    st.sampled_from([3.0, 1000.0, 1000.0]),  # patience
)


def nth(waiters: Mapping[Waiter, object], number: int) -> Waiter:
    return list(waiters)[number % len(waiters)]


class WaitingSet(RuleBasedStateMachine):
    """`running` are requests with slots, `waiting` those without; every request is in one of them or has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.now = NOW
        self.places = [place(f"b{number}", slots, length=20) for number, slots in enumerate(SLOTS)]
        self.running: dict[Waiter, SlotGrant] = {}
        self.waiting: dict[Waiter, None] = {}
        self.ended: set[Waiter] = set()
        self.passed: dict[Waiter, Counter[str]] = {}  # who waits -> slots that others got where it waits, by client

    # -- what a request does --------------------------------------------------------------------------------------

    def arrive(self, waiter: Waiter) -> None:
        self.waiting[waiter] = None
        self.passed[waiter] = Counter()
        try:
            self.scheduler.enqueue(waiter, self.now)
        except QueueFull:
            self.end(waiter)

    def woken(self, waiter: Waiter) -> None:
        assert waiter in self.waiting, "woken twice, or after its end"
        if waiter.granted is None:
            self.end(waiter)
            return
        del self.waiting[waiter]
        self.running[waiter] = held = waiter.granted
        for other in self.waiting:
            if all(held.state is not choice for choice in other.choices):
                continue
            if other.client == waiter.client:
                self.passed[other].clear()  # its client's turn starts anew
            elif other.batch == waiter.batch and not waiter.returning:
                self.passed[other][waiter.client] += 1

    def end(self, waiter: Waiter) -> None:
        self.waiting.pop(waiter, None)
        self.ended.add(waiter)

    def give_back(self, waiter: Waiter) -> None:
        held = self.running.pop(waiter)
        waiter.granted = None
        self.scheduler.release(held, self.now)

    # -- rules ----------------------------------------------------------------------------------------------------

    @initialize(asks=st.lists(ASKS, min_size=8, max_size=24))
    def crowd(self, asks: list[Ask]) -> None:
        for ask in asks:
            self.ask(ask)

    @rule(ask=ASKS)
    def ask(self, ask: Ask) -> None:
        client, takes, weight, batch, patience = ask
        self.arrive(self.request(client, tuple(self.places[n] for n in takes), weight, batch, patience))

    def request(
        self, client: str, choices: tuple[BackendState, ...], weight: int, batch: bool, patience: float
    ) -> Waiter:
        waiter = Waiter(client, self.now + patience, lambda: self.woken(waiter), lambda _: True, choices, choices)
        waiter.weight, waiter.batch, waiter.limit = weight, batch, LIMITS[client]
        return waiter

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 6), seconds=st.sampled_from([0.0, 1.0]))
    def finish(self, number: int, seconds: float) -> None:
        self.now += seconds
        waiter = nth(self.running, number)
        self.give_back(waiter)
        self.ended.add(waiter)

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 6))
    def fail_and_come_back(self, number: int) -> None:
        waiter = nth(self.running, number)
        self.give_back(waiter)
        waiter.returning = True
        self.waiting[waiter] = None
        self.passed[waiter] = Counter()
        self.scheduler.enqueue(waiter, self.now)

    @precondition(lambda self: self.running or self.waiting)
    @rule(number=st.integers(0, 20))
    def leave(self, number: int) -> None:
        """The client leaves: while it waits, or when it has just got its slots and does not know yet."""
        waiter = nth({**self.waiting, **self.running}, number)
        self.running.pop(waiter, None)
        self.end(waiter)
        self.scheduler.withdraw(waiter, self.now)

    @rule(number=st.sampled_from(range(len(SLOTS))), told=st.booleans())
    def go_or_return(self, number: int, told: bool) -> None:
        health = self.places[number].health
        health.state = State.READY if health.state is State.MISCONFIGURED else State.MISCONFIGURED
        if told:
            self.scheduler.changed(self.places[number], self.now)
        else:
            self.pass_time(0.0)

    @rule(number=st.sampled_from(range(len(SLOTS))), foreign=st.integers(0, 5))
    def others_come(self, number: int, foreign: int) -> None:
        self.places[number].foreign = foreign
        self.pass_time(0.0)

    @rule(seconds=st.sampled_from([0.05, 5.0, 50.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.scheduler.tick(self.now)
        assert all(waiter.deadline > self.now for waiter in self.waiting)

    @precondition(lambda self: not self.waiting)
    @rule(number=st.sampled_from(range(len(SLOTS))))
    def try_acquire(self, number: int) -> None:
        """The short way gives what the long one would."""
        state = self.places[number]
        free = is_open(state, self.now) and state.inflight < capacity(state)
        held = self.scheduler.try_acquire(state, 1, self.now)
        assert (held is not None) == free
        if held is not None:
            self.scheduler.release(held, self.now)

    # -- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def slots_are_counted(self) -> None:
        for state in self.places:
            mine = sum(held.slots for held in self.running.values() if held.state is state)
            assert state.inflight == mine <= state.slots

    @invariant()
    def nobody_is_forgotten(self) -> None:
        assert set(self.scheduler.waiters) == set(self.waiting)
        assert self.scheduler.depth() == {
            name: sum(any(c.name == name for c in w.choices) for w in self.waiting) for name in self.scheduler.depth()
        }

    @invariant()
    def no_slot_is_free_for_who_is_next(self) -> None:
        for state in self.places:
            if not is_open(state, self.now):
                continue
            free = capacity(state) - state.inflight
            able = [w for w in self.waiting if state in w.choices and not self.at_limit(w)]
            light = [w for w in able if w.weight == 1]
            if light and free > 0:  # only a heavy one that goes before it may keep this free
                first = min(light, key=rank)
                assert any(w.weight > 1 and rank(w) < rank(first) for w in able)
            assert not [w for w in able if not state.inflight and len(able) == 1], "alone before an empty backend"

    @invariant()
    def limits_are_kept(self) -> None:
        running = Counter(waiter.client for waiter in self.running)
        assert all(running[client] <= limit for client, limit in LIMITS.items() if limit is not None)

    @invariant()
    def nobody_is_passed_by_twice(self) -> None:
        """By one other client, at each backend it waits for; unless it is held up by its own limit or its weight."""
        for waiter in self.waiting:
            if waiter.limit is None and waiter.weight == 1:
                assert all(count <= len(waiter.choices) for count in self.passed[waiter].values())

    def at_limit(self, waiter: Waiter) -> bool:
        limit = waiter.limit
        return limit is not None and sum(w.client == waiter.client for w in self.running) >= limit

    def teardown(self) -> None:
        """Everybody ends: nothing is held, nobody waits."""
        for state in self.places:
            state.health.state, state.foreign = State.READY, 0
        self.scheduler.tick(self.now)
        while self.running:
            self.give_back(next(iter(self.running)))
        assert not self.waiting
        assert [state.inflight for state in self.places] == [0] * len(SLOTS)


TestWaitingSet = WaitingSet.TestCase
TestWaitingSet.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
