"""Slots that are kept count of, whoever dies, stops, forgets or comes back; and limits that hold over all gateways."""

from __future__ import annotations

from gateway.admission.backend_queue import QueueFull, Quota
from gateway.apps.cluster.redis_connection import key_of
from gateway.config.snapshot import Client
from gateway.errors import GatewayError
from tests.admission.scheduling import place as made_up_place
from tests.apps.cluster.office import MadeUp, Place, come, fill, later, lent, served, settle


def test_a_lease_that_is_told_anew_waits_no_more(three: list[MadeUp], place: Place) -> None:
    """However a gateway came to hold what it waits for in Redis: it is counted once."""
    one, two, _ = three
    fill(one, "a")
    waiter = two.comes("r", "a")
    key, backend = waiter.key, key_of(two.states["a"].backend)
    place.run("g2", ("renew", 0, [(key, backend, 1, "")], [], []))
    assert lent(place, two.states["a"]) == 3
    for name in ("a0", "a1"):
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
    alone.comes("y")
    assert isinstance(alone.waiters["y"].refused, QueueFull)
    alone.ask("z")
    alone.serve_alone()  # before it was asked for
    assert isinstance(alone.waiters["z"].refused, QueueFull)
    alone.close()


def test_a_grant_whose_message_was_lost_is_told_at_the_next_renewal(three: list[MadeUp]) -> None:
    one, two, _ = three
    fill(one, "a")
    two.comes("r", "a")
    one.end("a0")
    one.send()
    two.receive(lost=True)
    assert two.waiting == ["r"]
    two.renew()
    assert list(two.served) == ["r"]


def test_what_a_dead_gateway_held_is_free_when_it_is_not_present_any_more(three: list[MadeUp], place: Place) -> None:
    one, two, _ = three
    for name in ("a0", "a1"):
        one.ask(name, "a")
    one.comes("w", "a")
    two.comes("r", "a")
    for _ in range(3):  # its neighbours go on, it says nothing more
        later(2.0, *three[1:])
    assert list(two.served) == ["r"], "before the dead one's own waiter"
    assert lent(place, two.states["a"]) == 1


def test_whoever_speaks_first_has_the_slots_of_a_dead_one_given_away(three: list[MadeUp], place: Place) -> None:
    one, two, three_ = three
    fill(one, "a")
    two.comes("r", "a")
    later(5.0, two, three_)
    assert served(two) == []
    place.now += 2.0
    three_.comes("other", "b")
    two.receive()
    assert served(two) == ["r"]


def test_a_gateway_that_stops_leaves_nothing_behind(three: list[MadeUp], place: Place) -> None:
    one, two, _ = three
    come(one, ["a0", "a1", "w"], "a")
    two.comes("r", "a")
    place.run("g1", ("leave",))
    two.receive()
    assert list(two.served) == ["r"]
    two.end("r")
    two.go()
    assert place.left() == set()


def test_more_room_is_used_at_once_and_less_room_is_kept_to(three: list[MadeUp]) -> None:
    one, *_ = three
    come(one, [f"r{number}" for number in range(6)], "b")
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
        gateway.receive()
    assert len(one.served) == 4


def test_what_redis_has_lost_is_told_again(three: list[MadeUp], place: Place) -> None:
    one, two, three_ = three
    fill(one, "a")
    two.comes("r", "a")
    place.forget()
    for gateway in three:
        gateway.send()
        gateway.ask("poke-" + gateway.name, "b")
        gateway.go()  # a stranger
        gateway.renew()
        gateway.go()
    later(4.0, *three)  # they have settled
    settle(*three)
    assert lent(place, one.states["a"]) == one.inflight("a") == 2
    assert two.waiting == ["r"], "none alone either, while both slots were known to be held"
    three_.comes("s", "a")
    one.end("a0")
    settle(*three)
    assert (list(two.served)[-1], three_.waiting) == ("r", ["s"])
    one.end("a1")
    settle(*three)
    assert list(three_.served)[-1] == "s"


def test_the_first_to_come_back_takes_no_more_than_its_share(place: Place) -> None:
    """What the others hold is not told yet."""
    gateways = [MadeUp(name, place, {"a": 6}) for name in ("g1", "g2", "g3")]
    for gateway in gateways:
        gateway.knew = 3
        gateway.serve_alone()
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
    later(4.0, *gateways)
    settle(*gateways)
    assert sum(gateway.inflight("a") for gateway in gateways) == 6
    for gateway in gateways:
        gateway.close()


CLIENT = Client("c", rpm=3, tpm=1000)


def test_rpm_and_tpm_count_over_all_gateways(three: list[MadeUp]) -> None:
    for number in range(4):
        gateway = three[number % 3]
        gateway.ask(f"r{number}", "b", client="c", quota=Quota(CLIENT, 10, 0.0))
        gateway.go()
    assert len(served(*three)) == 3
    refused = three[0].waiters["r3"].refused
    assert isinstance(refused, GatewayError)
    assert (refused.code, refused.retry_after) == ("rate_limit_exceeded", 61)
    later(61.0, *three)
    three[1].comes("large", "b", client="c", quota=Quota(CLIENT, 900, 0.0))
    assert "large" in three[1].served
    three[2].comes("more", "b", client="c", quota=Quota(CLIENT, 200, 0.0))
    assert "tpm" in str(three[2].waiters["more"].refused)
    three[1].slots.settled(three[1].waiters["large"], 900, 100)  # it had fewer, and gives them back
    three[1].go()
    three[2].end("r2")
    three[2].comes("again", "b", client="c", quota=Quota(CLIENT, 200, 0.0))
    assert "again" in three[2].served


def test_a_request_counts_once_however_often_it_is_asked_for(three: list[MadeUp]) -> None:
    one, *_ = three
    waiter = one.comes("r", "b", client="c", quota=Quota(CLIENT, 10, 0.0))
    for _ in range(5):  # it fails, and comes back
        one.scheduler.release(one.served.pop("r"), 0.0)
        waiter.returning = True
        one.enqueue(waiter)
        one.go()
    assert "r" in one.served
