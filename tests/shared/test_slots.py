"""Who gets a slot where three gateways ask: the script in a real Redis, and what gateways make of its answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.admission.waiter import QueueFull, Quota
from gateway.config.snapshot import Client
from gateway.errors import GatewayError
from gateway.health.state import State
from gateway.shared.library import key_of
from tests.admission.scheduling import place as made_up_place
from tests.shared.office import MadeUp, Place, lent, settle
from tests.shared.redis_server import RedisServer


@pytest.fixture
def place(redis: RedisServer) -> Iterator[Place]:
    with redis.client() as client:
        yield Place(client)


@pytest.fixture
def three(place: Place) -> Iterator[list[MadeUp]]:
    """Three gateways that have joined, in front of a: 2, b: 4."""
    gateways = [MadeUp(name, place, {"a": 2, "b": 4}) for name in ("g1", "g2", "g3")]
    for gateway in gateways:
        gateway.renew()
    yield gateways
    for gateway in gateways:
        gateway.close()


def served(*gateways: MadeUp) -> list[str]:
    return [name for gateway in gateways for name in gateway.served]


def test_together_they_get_no_more_than_there_is(three: list[MadeUp], place: Place) -> None:
    for gateway in three:
        for number in range(4):
            gateway.ask(f"{gateway.name}-{number}", "a", client=gateway.name)
    settle(*three)
    assert len(served(*three)) == 2
    assert lent(place, three[0].states["a"]) == 2


def test_a_freed_slot_goes_to_who_waits_at_another_gateway(three: list[MadeUp]) -> None:
    one, two, _ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    one.go()
    two.ask("z", "a")
    two.go()
    assert two.waiting == ["z"]
    one.end("x")
    one.send()
    two.hear()
    assert list(two.served) == ["z"]
    assert two.inflight("a") == 1
    one.end("y")
    two.end("z")
    settle(*three)


def test_a_request_takes_whichever_of_its_backends_has_room(three: list[MadeUp]) -> None:
    one, two, _ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    one.go()
    two.ask("z", "a", "b")
    two.go()
    assert two.served["z"].state.name == "b"


def test_one_client_with_many_cannot_delay_anothers_single_one_at_another_gateway(three: list[MadeUp]) -> None:
    one, two, three_ = three
    for name in ("r1", "r2"):
        three_.ask(name, "a")
    three_.go()
    for number in range(100):
        one.ask(f"hog-{number}", "a", client="hog")
    one.go()
    two.ask("single", "a", client="other")
    two.go()
    for name in ("r1", "r2"):  # two slots' turns
        three_.end(name)
        settle(*three)
    assert "single" in two.served
    assert len(one.served) == 1


def test_the_order_is_interactive_then_returning_then_turns(three: list[MadeUp]) -> None:
    one, two, three_ = three
    for name in ("r1", "r2"):
        three_.ask(name, "a")
    three_.go()
    one.ask("batch", "a", client="c1", batch=True)
    one.go()
    two.ask("plain", "a", client="c2")
    two.go()
    one.ask("back", "a", client="c3", returning=True)
    one.go()
    order = []
    for name in ("r1", "r2"):
        three_.end(name)
        settle(*three)
        order += [n for n in served(*three) if n not in order and n not in ("r1", "r2")]
    for name in ("back", "plain"):
        (one if name == "back" else two).end(name)
    settle(*three)
    order += [n for n in served(*three) if n not in order]
    assert order == ["back", "plain", "batch"]


def test_a_heavy_one_waits_for_enough_and_is_not_passed_by_lighter_ones(three: list[MadeUp]) -> None:
    one, two, three_ = three
    for number in range(3):
        one.ask(f"x{number}", "b")
    one.go()
    two.ask("heavy", "b", weight=3)
    two.go()
    three_.ask("light", "b")
    three_.go()
    assert served(two, three_) == []
    one.end("x0")
    settle(*three)
    assert served(two, three_) == []
    one.end("x1")
    settle(*three)
    assert served(two, three_) == ["heavy"]
    one.end("x2")
    settle(*three)
    assert served(two, three_) == ["heavy", "light"]


def test_max_inflight_counts_over_all_gateways(three: list[MadeUp]) -> None:
    one, two, _ = three
    one.ask("r1", "b", client="narrow", limit=1)
    one.go()
    two.ask("r2", "b", client="narrow", limit=1)
    two.go()
    assert served(one, two) == ["r1"]
    one.end("r1")
    settle(*three)
    assert served(one, two) == ["r2"]


def test_a_slot_of_one_client_at_its_limit_lets_its_next_one_go_elsewhere(three: list[MadeUp]) -> None:
    one, two, _ = three
    one.ask("r1", "a", client="narrow", limit=1)
    one.go()
    two.ask("r2", "b", client="narrow", limit=1)
    two.go()
    one.end("r1")
    settle(*three)
    assert list(two.served) == ["r2"], "freed at a, wanted at b"


def test_one_that_leaves_while_its_answer_is_on_its_way_holds_nothing(three: list[MadeUp], place: Place) -> None:
    one, *_ = three
    one.ask("r1", "a")
    batch = one.slots.take()
    answers = place.run("g1", *(operation for operation, _ in batch))
    one.leave("r1")
    for (_, answer), value in zip(batch, answers, strict=True):
        answer(value)
    settle(*three)
    assert place.left() == set()


def test_a_grant_that_meets_one_that_has_left_is_handed_on(three: list[MadeUp]) -> None:
    one, two, three_ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    one.go()
    two.ask("gone", "a")
    two.go()
    three_.ask("next", "a")
    three_.go()
    one.end("x")
    one.send()  # granted to `gone`, which leaves before it hears of it
    two.leave("gone")
    two.send()
    two.hear()
    three_.hear()
    assert served(two, three_) == ["next"]
    assert two.inflight("a") == 0


def test_a_grant_for_a_backend_that_has_just_fallen_is_given_back(three: list[MadeUp]) -> None:
    one, two, _ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    one.go()
    two.renew()  # it knows that a is full
    waiter = two.waiter("r", ("a", "b"))
    waiter.choices = (two.states["a"],)

    def replan(_: float) -> bool:
        waiter.choices = (two.states["b"],)
        return True

    waiter.replan = replan
    two.offer(waiter)
    two.go()
    two.states["a"].health.state = State.DOWN
    one.end("x")
    settle(*three)
    assert two.served["r"].state.name == "b"
    assert one.inflight("a") + two.inflight("a") == 1
    assert lent(two.redis, two.states["a"]) == 1


def test_one_that_plans_anew_as_before_sends_nothing(three: list[MadeUp]) -> None:
    one, two, _ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    one.go()
    two.ask("r", "a")
    two.go()
    two.scheduler.changed(two.states["a"], 0.0)
    assert two.slots.take() == []


def test_one_that_plans_anew_keeps_its_place(three: list[MadeUp]) -> None:
    one, two, three_ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    for number in range(4):
        one.ask(f"z{number}", "b")
    one.go()
    two.ask("first", "a", "b")
    two.go()
    three_.ask("second", "b")
    three_.go()
    two.states["a"].health.state = State.DOWN
    two.scheduler.changed(two.states["a"], 0.0)
    two.go()
    one.end("z0")
    settle(*three)
    assert served(two, three_) == ["first"]


def test_one_that_plans_anew_keeps_its_turn_too(three: list[MadeUp]) -> None:
    one, two, three_ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    for number in range(4):
        one.ask(f"z{number}", "b")
    one.go()
    for name in ("c1", "c2"):
        two.ask(name, "a", "b", client="c")
    two.go()
    three_.ask("d", "a", client="d")
    three_.go()
    one.end("x")
    settle(*three)
    assert served(two, three_) == ["c1"]
    two.states["b"].health.state = State.DOWN
    two.scheduler.changed(two.states["b"], 0.0)
    two.go()
    one.end("y")
    settle(*three)
    assert served(two, three_) == ["c1", "d"], "its client has had its turn"


def test_a_lease_that_is_told_anew_waits_no_more(three: list[MadeUp], place: Place) -> None:
    """However a gateway came to hold what it waits for in Redis: it is counted once."""
    one, two, _ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    one.go()
    waiter = two.ask("r", "a")
    two.go()
    key, backend = waiter.key, key_of(two.states["a"].backend)
    place.run("g2", ("renew", 0, [(key, backend, 1, "")], [], []))
    assert lent(place, two.states["a"]) == 3
    for name in ("x", "y"):
        one.end(name)
    settle(one)
    assert lent(place, two.states["a"]) == 1
    place.run("g2", ("drop", key))
    assert place.left() == set()
    two.leave("r")


def test_a_queue_that_is_full_at_its_gateway_is_full(place: Place) -> None:
    alone = MadeUp("g1", place, {"a": 1})
    alone.states["a"] = made_up_place("a", 1, length=0)
    alone.renew()
    alone.ask("x")
    alone.ask("y")
    alone.go()
    assert isinstance(alone.waiters["y"].refused, QueueFull)
    alone.ask("z")
    alone.part()  # before it was asked for
    assert isinstance(alone.waiters["z"].refused, QueueFull)
    alone.close()


def test_a_grant_whose_message_was_lost_is_told_at_the_next_renewal(three: list[MadeUp]) -> None:
    one, two, _ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    one.go()
    two.ask("r", "a")
    two.go()
    one.end("x")
    one.send()
    two.hear(lost=True)
    assert two.waiting == ["r"]
    two.renew()
    assert list(two.served) == ["r"]


def test_what_a_dead_gateway_held_is_free_when_it_is_not_present_any_more(three: list[MadeUp], place: Place) -> None:
    one, two, _ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    one.ask("w", "a")
    one.go()
    two.ask("r", "a")
    two.go()
    for _ in range(3):  # its neighbours go on, it says nothing more
        place.now += 2.0
        for gateway in three[1:]:
            gateway.renew()
            gateway.hear()
    assert list(two.served) == ["r"], "before the dead one's own waiter"
    assert lent(place, two.states["a"]) == 1


def test_whoever_speaks_first_has_the_slots_of_a_dead_one_given_away(three: list[MadeUp], place: Place) -> None:
    one, two, three_ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    one.go()
    two.ask("r", "a")
    two.go()
    for seconds in (5.0, 2.0):
        place.now += seconds
        if seconds == 5.0:
            two.renew()
            three_.renew()
            assert served(two) == []
    three_.ask("other", "b")
    three_.go()
    two.hear()
    assert served(two) == ["r"]


def test_a_gateway_that_stops_leaves_nothing_behind(three: list[MadeUp], place: Place) -> None:
    one, two, _ = three
    for name in ("x", "y", "w"):
        one.ask(name, "a")
    one.go()
    two.ask("r", "a")
    two.go()
    place.run("g1", ("leave",))
    two.hear()
    assert list(two.served) == ["r"]
    two.end("r")
    two.go()
    assert place.left() == set()


def test_more_room_is_used_at_once_and_less_room_is_kept_to(three: list[MadeUp]) -> None:
    one, *_ = three
    for number in range(6):
        one.ask(f"r{number}", "b")
    one.go()
    assert len(one.served) == 4
    for gateway in three:
        gateway.states["b"].foreign = 2
        gateway.renew()
    for name in ("r0", "r1"):
        one.end(name)
    settle(*three)
    assert len(one.served) == 2, "others use two of four"
    for gateway in three:
        gateway.states["b"].foreign = 0
        gateway.renew()
        gateway.hear()
    assert len(one.served) == 4


def test_what_redis_has_lost_is_told_again(three: list[MadeUp], place: Place) -> None:
    one, two, three_ = three
    for name in ("x", "y"):
        one.ask(name, "a")
    one.go()
    two.ask("r", "a")
    two.go()
    place.forget()
    for gateway in three:
        gateway.send()
        gateway.ask("poke-" + gateway.name, "b")
        gateway.go()  # a stranger
        gateway.renew()
        gateway.go()
    place.now += 4.0  # they have settled
    for gateway in three:
        gateway.renew()
    settle(*three)
    # r was served alone meanwhile, by the local share: the excess that is accepted
    assert lent(place, one.states["a"]) == one.inflight("a") + two.inflight("a") == 3
    one.end("x")
    three_.ask("s", "a")
    settle(*three)
    assert three_.waiting == ["s"], "none until it is below its slots"
    one.end("y")
    settle(*three)
    assert list(three_.served)[-1] == "s"


def test_the_first_to_come_back_takes_no_more_than_its_share(place: Place) -> None:
    """What the others hold is not told yet."""
    gateways = [MadeUp(name, place, {"a": 6}) for name in ("g1", "g2", "g3")]
    for gateway in gateways:
        gateway.knew = 3
        gateway.part()
    first, *others = gateways
    for gateway in others:
        for number in range(2):
            gateway.ask(f"{gateway.name}{number}")
    assert [gateway.inflight("a") for gateway in gateways] == [0, 2, 2], "each its share"
    first.renew()
    for number in range(6):
        first.ask(f"r{number}")
    settle(first)
    assert first.inflight("a") == 2
    for gateway in others:
        gateway.renew()
    place.now += 4.0
    for gateway in gateways:
        gateway.renew()
    settle(*gateways)
    assert sum(gateway.inflight("a") for gateway in gateways) == 6
    for gateway in gateways:
        gateway.close()


CLIENT = Client("c", rpm=3, tpm=1000)


def test_rpm_and_tpm_count_over_all_gateways(three: list[MadeUp], place: Place) -> None:
    for number in range(4):
        gateway = three[number % 3]
        gateway.ask(f"r{number}", "b", client="c", quota=Quota(CLIENT, 10, 0.0))
        gateway.go()
    assert len(served(*three)) == 3
    refused = three[0].waiters["r3"].refused
    assert isinstance(refused, GatewayError)
    assert (refused.code, refused.retry_after) == ("rate_limit_exceeded", 61)
    place.now += 61.0
    for gateway in three:
        gateway.renew()
    three[1].ask("large", "b", client="c", quota=Quota(CLIENT, 900, 0.0))
    three[1].go()
    assert "large" in three[1].served
    three[2].ask("more", "b", client="c", quota=Quota(CLIENT, 200, 0.0))
    three[2].go()
    assert "tpm" in str(three[2].waiters["more"].refused)
    three[1].slots.settled(three[1].waiters["large"], 900, 100)  # it had fewer, and gives them back
    three[1].go()
    three[2].end("r2")
    three[2].ask("again", "b", client="c", quota=Quota(CLIENT, 200, 0.0))
    three[2].go()
    assert "again" in three[2].served


def test_a_request_counts_once_however_often_it_is_asked_for(three: list[MadeUp]) -> None:
    one, *_ = three
    waiter = one.ask("r", "b", client="c", quota=Quota(CLIENT, 10, 0.0))
    one.go()
    for _ in range(5):  # it fails, and comes back
        one.scheduler.release(one.served.pop("r"), 0.0)
        waiter.returning = True
        one.offer(waiter)
        one.go()
    assert "r" in one.served
