"""Who gets a slot where three gateways ask: the script in a real Redis, and what gateways make of its answers."""

from __future__ import annotations

from gateway.domain.health_state import State
from tests.apps.cluster.office import MadeUp, Place, come, falls, fill, lent, served, settle


def test_together_they_get_no_more_than_there_is(three: list[MadeUp], place: Place) -> None:
    for gateway in three:
        for number in range(4):
            gateway.ask(f"{gateway.name}-{number}", "a", client=gateway.name)
    settle(*three)
    assert len(served(*three)) == 2
    assert lent(place, three[0].states["a"]) == 2


def test_a_freed_slot_goes_to_who_waits_at_another_gateway(three: list[MadeUp]) -> None:
    one, two, _ = three
    fill(one, "a")
    two.comes("z", "a")
    assert two.waiting == ["z"]
    one.end("a0")
    one.send()
    two.receive()
    assert list(two.served) == ["z"]
    assert two.inflight("a") == 1
    one.end("a1")
    two.end("z")
    settle(*three)


def test_a_request_takes_whichever_of_its_backends_has_room(three: list[MadeUp]) -> None:
    one, two, _ = three
    fill(one, "a")
    two.comes("z", "a", "b")
    assert two.served["z"].state.name == "b"


def test_one_client_with_many_cannot_delay_anothers_single_one_at_another_gateway(three: list[MadeUp]) -> None:
    one, two, three_ = three
    fill(three_, "a")
    come(one, [f"hog-{number}" for number in range(100)], "a", client="hog")
    two.comes("single", "a", client="other")
    for name in ("a0", "a1"):  # two slots' turns
        three_.end(name)
        settle(*three)
    assert "single" in two.served
    assert len(one.served) == 1


def test_the_order_is_interactive_then_returning_then_turns(three: list[MadeUp]) -> None:
    one, two, three_ = three
    fill(three_, "a")
    one.comes("batch", "a", client="c1", batch=True)
    two.comes("plain", "a", client="c2")
    one.comes("back", "a", client="c3", returning=True)
    order = []
    for name in ("a0", "a1"):
        three_.end(name)
        settle(*three)
        order += [n for n in served(*three) if n not in order and n not in ("a0", "a1")]
    for name in ("back", "plain"):
        (one if name == "back" else two).end(name)
    settle(*three)
    order += [n for n in served(*three) if n not in order]
    assert order == ["back", "plain", "batch"]


def test_a_heavy_one_waits_for_enough_and_is_not_passed_by_lighter_ones(three: list[MadeUp]) -> None:
    one, two, three_ = three
    come(one, ["x0", "x1", "x2"], "b")
    two.comes("heavy", "b", weight=3)
    three_.comes("light", "b")
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
    one.comes("r1", "b", client="narrow", limit=1)
    two.comes("r2", "b", client="narrow", limit=1)
    assert served(one, two) == ["r1"]
    one.end("r1")
    settle(*three)
    assert served(one, two) == ["r2"]


def test_a_slot_of_one_client_at_its_limit_lets_its_next_one_go_elsewhere(three: list[MadeUp]) -> None:
    one, two, _ = three
    one.comes("r1", "a", client="narrow", limit=1)
    two.comes("r2", "b", client="narrow", limit=1)
    one.end("r1")
    settle(*three)
    assert list(two.served) == ["r2"], "freed at a, wanted at b"


def test_one_that_leaves_while_its_answer_is_on_its_way_holds_nothing(three: list[MadeUp], place: Place) -> None:
    one, *_ = three
    one.ask("r1", "a")
    batch = one.slots.pending_operations()
    answers = place.run("g1", *(operation for operation, _ in batch))
    one.leave("r1")
    for (_, answer), value in zip(batch, answers, strict=True):
        answer(value)
    settle(*three)
    assert place.left() == set()


def test_a_grant_that_meets_one_that_has_left_is_handed_on(three: list[MadeUp]) -> None:
    one, two, three_ = three
    fill(one, "a")
    two.comes("gone", "a")
    three_.comes("next", "a")
    one.end("a0")
    one.send()  # granted to `gone`, which leaves before it hears of it
    two.leave("gone")
    two.send()
    two.receive()
    three_.receive()
    assert served(two, three_) == ["next"]
    assert two.inflight("a") == 0


def test_a_grant_for_a_backend_that_has_just_fallen_is_given_back(three: list[MadeUp]) -> None:
    one, two, _ = three
    fill(one, "a")
    two.renew()  # it knows that a is full
    waiter = two.waiter("r", ("a", "b"))
    waiter.choices = (two.states["a"],)

    def replan(_: float) -> bool:
        waiter.choices = (two.states["b"],)
        return True

    waiter.replan = replan
    two.enqueue(waiter)
    two.go()
    two.states["a"].health.state = State.DOWN
    one.end("a0")
    settle(*three)
    assert two.served["r"].state.name == "b"
    assert one.inflight("a") + two.inflight("a") == 1
    assert lent(two.redis, two.states["a"]) == 1


def test_one_that_plans_anew_as_before_sends_nothing(three: list[MadeUp]) -> None:
    one, two, _ = three
    fill(one, "a")
    two.comes("r", "a")
    two.scheduler.changed(two.states["a"], 0.0)
    assert two.slots.pending_operations() == []


def test_one_that_plans_anew_keeps_its_place(three: list[MadeUp]) -> None:
    one, two, three_ = three
    fill(one, "a", "b")
    two.comes("first", "a", "b")
    three_.comes("second", "b")
    falls(two, "a")
    one.end("b0")
    settle(*three)
    assert served(two, three_) == ["first"]


def test_one_that_plans_anew_keeps_its_turn_too(three: list[MadeUp]) -> None:
    one, two, three_ = three
    fill(one, "a", "b")
    come(two, ["c1", "c2"], "a", "b", client="c")
    three_.comes("d", "a", client="d")
    one.end("a0")
    settle(*three)
    assert served(two, three_) == ["c1"]
    falls(two, "b")
    one.end("a1")
    settle(*three)
    assert served(two, three_) == ["c1", "d"], "its client has had its turn"
