"""What gateways use on their own while Redis is away: never more together than there is, as long as what was last known
of the others counts."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import httpx
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gateway.apps.cluster import shared_slots as slots_module
from gateway.apps.cluster.shared_slots import LEASE, share_of, slots_alone
from tests.apps.cluster.joined import FAST, Counting, ask, gateways, slots_of, until_joined
from tests.apps.cluster.office import MadeUp, Place, come
from tests.apps.cluster.redis_server import RedisServer
from tests.support import RunningGateway

HELD = st.lists(st.integers(0, 6), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("slots", "gateways_", "ours", "others", "most"),
    [
        (2, 2, 0, [], 1),
        (2, 2, 0, [1], 1),
        (2, 2, 0, [2], 0),
        (2, 2, 2, [], 1),
        (6, 3, 0, [4], 1),
        (6, 3, 1, [5], 1),
        (6, 3, 0, [6], 0),
        (6, 3, 2, [], 2),
        (1, 3, 0, [], 1),
        (1, 3, 0, [1], 1),
        (2, 3, 0, [2], 0),
        (3, 1, 0, [1, 2], 0),
    ],
)
def test_a_share_is_less_by_what_others_hold_beyond_theirs(
    slots: int, gateways_: int, ours: int, others: list[int], most: int
) -> None:
    assert slots_alone(slots, gateways_, ours, others) == most


@given(held=HELD, slots=st.integers(1, 12), more=st.data())
def test_all_together_stay_within_the_slots(held: list[int], slots: int, more: st.DataObject) -> None:
    """Also where each knows others to hold more than they still do, or what they hold itself has become less."""
    slots = max(slots, sum(held))
    total = 0
    for number, ours in enumerate(held):
        known = [one + more.draw(st.sampled_from([0, 0, 1, 3])) for i, one in enumerate(held) if i != number]
        now_ours = more.draw(st.integers(0, ours))
        most = slots_alone(slots, len(held), now_ours, known)
        assert most <= share_of(slots, len(held))
        total += max(now_ours, most)
    assert total <= max(slots, len(held))


SLOTS = {"a": 3, "b": 4, "c": 7}


class RedisUnavailable(RuleBasedStateMachine):
    """Three gateways, and a Redis that goes and comes, with all that it knew or without. They hear what it says before
    it goes; how they notice, and come back, has any order."""

    server: ClassVar[RedisServer]

    def __init__(self) -> None:
        super().__init__()
        self.redis = self.server.client()
        self.redis.flushall()
        self.place = Place(self.redis)
        self.gateways = [MadeUp(name, self.place, SLOTS) for name in ("g1", "g2", "g3")]
        self.count = 0
        self.there = True
        self.gone_at = 0.0
        for _ in range(2):
            for gateway in self.gateways:
                gateway.renew()

    @rule(which=st.integers(0, 2), backend=st.sampled_from(list(SLOTS)), number=st.integers(1, 4))
    def ask(self, which: int, backend: str, number: int) -> None:
        for _ in range(number):
            self.count += 1
            self.gateways[which].ask(f"r{self.count}", backend)
        self.go(which)

    @rule(which=st.integers(0, 2), number=st.integers(0, 6), tell=st.booleans())
    def finish(self, which: int, number: int, tell: bool) -> None:
        gateway = self.gateways[which]
        if gateway.served:
            gateway.end(list(gateway.served)[number % len(gateway.served)])
        if tell:
            self.go(which)

    @rule(which=st.integers(0, 2))
    def go(self, which: int) -> None:
        if self.there:
            self.gateways[which].send()
            for gateway in self.gateways:
                gateway.receive()

    @precondition(lambda self: self.there and all(gateway.slots.joined for gateway in self.gateways))
    @rule(order=st.permutations([0, 1, 2]), heard=st.booleans())
    def goes(self, order: list[int], heard: bool) -> None:
        """`heard`: what is under way there has been done; else it never was."""
        for which in order if heard else ():
            self.go(which)
        self.there, self.gone_at = False, self.place.now
        for which in order:
            self.gateways[which].serve_alone()

    @precondition(lambda self: not self.there)
    @rule(order=st.permutations([0, 1, 2]), forgets=st.booleans(), count=st.integers(1, 3))
    def comes(self, order: list[int], forgets: bool, count: int) -> None:
        """And some of the gateways join at once."""
        self.there = True
        if forgets:
            self.place.forget()
        for which in order[:count]:
            self.join(which)

    @precondition(lambda self: self.there)
    @rule(which=st.integers(0, 2))
    def join(self, which: int) -> None:
        self.gateways[which].renew()
        for gateway in self.gateways:
            gateway.receive()

    @precondition(lambda self: self.there or self.place.now + 2.0 < self.gone_at + LEASE)
    @rule(seconds=st.sampled_from([0.3, 1.0, 2.0]))
    def time_passes(self, seconds: float) -> None:
        """Those that are joined renew, and those that are not join where Redis is there."""
        self.place.now += seconds
        for which, gateway in enumerate(self.gateways):
            gateway.tick()
            if self.there:
                self.join(which)

    @invariant()
    def slots_are_kept(self) -> None:
        for backend, slots in SLOTS.items():
            assert sum(gateway.inflight(backend) for gateway in self.gateways) <= slots

    def teardown(self) -> None:
        for gateway in self.gateways:
            gateway.close()
        self.redis.close()


def test_whatever_comes_before_and_after_no_slot_is_used_twice_while_leases_count(redis: RedisServer) -> None:
    RedisUnavailable.server = redis
    phases = (Phase.generate, Phase.shrink)
    how = settings(max_examples=60, stateful_step_count=30, deadline=None, phases=phases)
    run_state_machine_as_test(RedisUnavailable, settings=how)


def test_when_leases_are_over_and_not_before_each_has_its_share(three: list[MadeUp], place: Place) -> None:
    one, two, _ = three
    come(one, ["b0", "b1", "b2", "b3"], "b")
    two.receive()
    for gateway in three:
        gateway.serve_alone()
    two.ask("r", "b")
    place.now += LEASE - 0.1
    two.tick()
    assert (two.waiting, two.states["b"].shared.alone) == (["r"], 0)
    place.now += 0.2
    two.tick()
    assert (list(two.served), two.states["b"].shared.alone) == (["r"], None)


def test_who_holds_more_than_its_share_starts_nothing_until_it_is_below(three: list[MadeUp]) -> None:
    one, *_ = three
    one.renew()  # there are three
    come(one, ["b0", "b1", "b2", "b3"], "b")
    one.serve_alone()
    one.ask("r", "b")
    for name in ("b0", "b1", "b2"):
        one.end(name)
        assert one.waiting == ["r"], "slots // gateways is one"
    one.end("b3")
    assert list(one.served) == ["r"]


def test_what_was_held_when_redis_went_counts_when_it_has_come_and_gone_again(
    three: list[MadeUp], place: Place
) -> None:
    one, two, three_ = three
    come(one, ["b0", "b1", "b2", "b3"], "b")
    two.receive()
    for gateway in three:
        gateway.serve_alone()
    place.forget()
    two.renew()  # what the first holds is not told yet
    two.ask("r", "b")
    two.go()
    assert two.waiting == ["r"]
    two.serve_alone()
    assert two.waiting == ["r"]
    for gateway in (two, one, three_, two, one):  # each again when another has come
        gateway.renew()
    assert two.waiting == ["r"]
    one.end("b0")
    one.go()
    two.receive()
    assert list(two.served) == ["r"]


async def redis_dies_while_one_holds_all(
    redis: RedisServer, sim: Counting, one: RunningGateway, two: RunningGateway
) -> list[asyncio.Task[httpx.Response]]:
    """`one` has two streams under way that hang, which are all slots, and both gateways are alone."""
    sim.fault("hang_mid", after=2, count=2)
    held = [asyncio.create_task(ask(one, said="9 words", stream=True)) for _ in range(2)]
    await sim.wait_inflight(2)
    await two.until(lambda: two.gateway.fleet["a"].shared.others == (2,))
    redis.kill()
    for gateway in (one, two):
        await until_joined(gateway, False)
    return held


async def test_two_streams_of_one_gateway_leave_no_slot_to_the_other_when_redis_dies(own_redis: RedisServer) -> None:
    sim = Counting("a", slots=32)
    async with sim.serve() as url, gateways(own_redis, FAST + slots_of(url, 2)) as (one, two):
        held = await redis_dies_while_one_holds_all(own_redis, sim, one, two)
        waiting = asyncio.create_task(ask(two, said="2 words"))
        await two.until(lambda: two.gateway.admission.scheduler.depth() == {"a": 1})
        assert (sim.most, sim.inflight) == (2, 2)
        for task in held:
            task.cancel()
        assert (await waiting).status_code == 200, "the engine says that nothing runs there any more"
        assert sim.most == 2


async def test_where_others_do_not_end_their_leases_do(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "LEASE", 1.0)
    sim = Counting("a", slots=32)
    async with sim.serve() as url, gateways(own_redis, FAST + slots_of(url, 2)) as (one, two):
        held = await redis_dies_while_one_holds_all(own_redis, sim, one, two)
        assert (await ask(two, said="2 words")).status_code == 200
        for task in held:
            task.cancel()
