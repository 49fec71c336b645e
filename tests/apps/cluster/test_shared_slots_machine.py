"""Whatever three gateways do in whatever order, with whatever is lost on the way: no slot is given twice, nobody is
forgotten, and at the end nothing is held."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gateway.domain.health_state import State
from tests.apps.cluster.office import MadeUp, Place, lent
from tests.apps.cluster.redis_server import RedisServer

SLOTS = {"a": 1, "b": 2, "c": 4}
LIMITS = {"free": None, "other": None, "narrow": 2}
NAMES = ("g1", "g2", "g3")

Ask = tuple[str, list[str], int, bool]
ASKS: st.SearchStrategy[Ask] = st.tuples(
    st.sampled_from(list(LIMITS)),
    st.lists(st.sampled_from(list(SLOTS)), min_size=1, max_size=3, unique=True),
    st.sampled_from([1, 1, 1, 2, 5]),  # weight
    st.sampled_from([False, False, True]),  # batch
)
WHICH = st.integers(0, 2)


class Calm(RuleBasedStateMachine):
    """Nothing is lost; the gateways send and hear when they like."""

    server: ClassVar[RedisServer]

    def __init__(self) -> None:
        super().__init__()
        self.redis = self.server.client()
        self.redis.flushall()
        self.place = Place(self.redis)
        self.gateways = [MadeUp(name, self.place, SLOTS) for name in NAMES]
        self.count = 0
        for gateway in self.gateways:
            gateway.renew()

    # -- requests -------------------------------------------------------------------------------------------------

    @initialize(asks=st.lists(st.tuples(WHICH, ASKS), min_size=6, max_size=16))
    def crowd(self, asks: list[tuple[int, Ask]]) -> None:
        for which, ask in asks:
            self.ask(which, ask)
            self.gateways[which].send()

    @rule(which=WHICH, ask=ASKS)
    def ask(self, which: int, ask: Ask) -> None:
        client, choices, weight, batch = ask
        self.count += 1
        more = {"client": client, "weight": weight, "batch": batch, "limit": LIMITS[client]}
        self.gateways[which].ask(f"r{self.count}", *choices, **more)

    @rule(which=WHICH, number=st.integers(0, 6))
    def finish(self, which: int, number: int) -> None:
        gateway = self.gateways[which]
        if gateway.served:
            gateway.end(list(gateway.served)[number % len(gateway.served)])

    @rule(which=WHICH, number=st.integers(0, 6))
    def fail_and_come_back(self, which: int, number: int) -> None:
        gateway = self.gateways[which]
        if gateway.served:
            name = list(gateway.served)[number % len(gateway.served)]
            waiter = gateway.waiters[name]
            gateway.end(name)
            del gateway.ended[name]
            waiter.returning = True
            waiter.replan(0.0)
            gateway.enqueue(waiter)

    @rule(which=WHICH, number=st.integers(0, 12))
    def leave(self, which: int, number: int) -> None:
        gateway = self.gateways[which]
        there = [*gateway.waiting, *gateway.served]
        if there:
            gateway.leave(there[number % len(there)])

    # -- gateways -------------------------------------------------------------------------------------------------

    @rule(which=WHICH)
    def send(self, which: int) -> None:
        self.gateways[which].send()

    @rule(which=WHICH)
    def receive(self, which: int) -> None:
        self.gateways[which].receive()

    @rule(which=WHICH)
    def renew(self, which: int) -> None:
        self.gateways[which].renew()

    @rule(which=WHICH, backend=st.sampled_from(list(SLOTS)))
    def go_or_return(self, which: int, backend: str) -> None:
        """One gateway thinks that a backend is gone; who waits for it plans anew."""
        gateway = self.gateways[which]
        state = gateway.states[backend]
        state.health.state = State.READY if state.health.state is State.MISCONFIGURED else State.MISCONFIGURED
        gateway.scheduler.changed(state, 0.0)

    @rule()
    def time_passes(self) -> None:
        self.place.now += 2.0
        for gateway in self.gateways:
            gateway.renew()

    # -- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def slots_are_kept(self) -> None:
        for backend, slots in SLOTS.items():
            assert sum(gateway.inflight(backend) for gateway in self.gateways) <= slots
            assert lent(self.place, self.gateways[0].states[backend]) <= slots

    @invariant()
    def limits_are_kept(self) -> None:
        running = Counter(g.waiters[name].client for g in self.gateways for name in g.served)
        assert all(running[client] <= limit for client, limit in LIMITS.items() if limit is not None)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        for gateway in self.gateways:
            for name in gateway.waiters:
                places = [name in gateway.served, name in gateway.waiting, name in gateway.ended]
                assert sum(places) == 1, name

    # -- the end --------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """All is well again, and everybody who waits gets a turn."""
        try:
            self.calm_down()
            self.everybody_ends()
        finally:
            for gateway in self.gateways:
                gateway.close()
            self.redis.close()

    def calm_down(self) -> None:
        for _ in range(2):
            for gateway in self.gateways:
                for state in gateway.states.values():
                    state.health.state, state.foreign = State.READY, 0
                    gateway.scheduler.changed(state, 0.0)
                gateway.send()
                gateway.renew()
                gateway.go()
            self.place.now += 4.0  # they have settled

    def everybody_ends(self) -> None:
        for _ in range(4 * self.count + 8):
            for gateway in self.gateways:
                gateway.go()
                for name in list(gateway.served):
                    gateway.end(name)
                gateway.go()
            if not any(gateway.waiting or gateway.served for gateway in self.gateways):
                break
        assert [gateway.waiting for gateway in self.gateways] == [[], [], []]
        for gateway in self.gateways:
            gateway.go()
            assert [state.inflight for state in gateway.states.values()] == [0, 0, 0]
        assert self.place.left() == set()


class Stormy(Calm):
    """Messages are lost, Redis forgets, gateways are cut off, frozen and killed: slots may be given beyond their number
    then, by what gateways on their own may take; but nobody is lost, and in the end all is as it should be."""

    @rule(which=WHICH)
    def lose_messages(self, which: int) -> None:
        self.gateways[which].receive(lost=True)

    @rule(which=WHICH)
    def cut_off(self, which: int) -> None:
        self.gateways[which].serve_alone()

    @rule()
    def redis_forgets(self) -> None:
        self.place.forget()

    @rule(which=WHICH, seconds=st.sampled_from([3.0, 7.0]))
    def freeze(self, which: int, seconds: float) -> None:
        """The others go on, this one says nothing for so long."""
        self.place.now += seconds
        for gateway in self.gateways:
            if gateway is not self.gateways[which]:
                gateway.renew()

    @rule(which=WHICH)
    def kill(self, which: int) -> None:
        """Its requests end with it; another is started in its place."""
        old = self.gateways[which]
        old.close()
        self.gateways[which] = new = MadeUp(f"{old.name}x", self.place, SLOTS)
        new.renew()

    @invariant()
    def slots_are_kept(self) -> None:
        for backend, slots in SLOTS.items():
            assert all(gateway.inflight(backend) <= slots for gateway in self.gateways)

    @invariant()
    def limits_are_kept(self) -> None:
        for gateway in self.gateways:
            running = Counter(gateway.waiters[name].client for name in gateway.served)
            assert all(running[client] <= limit for client, limit in LIMITS.items() if limit is not None)

    def calm_down(self) -> None:
        for gateway in self.gateways:
            gateway.serve_alone()
        self.place.now += 7.0  # who was killed is forgotten
        super().calm_down()


def test_calm(redis: RedisServer) -> None:
    run(Calm, redis)


def test_stormy(redis: RedisServer) -> None:
    run(Stormy, redis)


def run(machine: type[Calm], server: RedisServer) -> None:
    machine.server = server
    phases = (Phase.generate, Phase.shrink)
    how = settings(max_examples=60, stateful_step_count=40, deadline=None, phases=phases)
    run_state_machine_as_test(machine, settings=how)
