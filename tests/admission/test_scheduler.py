"""Who gets which slot, in which order, and who is refused: the waiting set without anything around it."""

from __future__ import annotations

from gateway.domain.health_state import State
from tests.admission.scheduling import Office, held, place


def test_a_free_slot_is_taken_at_once_and_a_full_backend_makes_wait() -> None:
    office, a = Office(), place("a", 2)
    for name in ("one", "two", "three"):
        office.ask(name, a)
    assert office.served == ["one", "two"]
    assert (a.inflight, office.scheduler.depth()) == (2, {"a": 1})
    office.end("one")
    assert office.served == ["one", "two", "three"]
    assert (a.inflight, office.scheduler.depth()) == (2, {"a": 0})


def test_the_short_way_takes_no_slot_over_the_heads_of_those_who_wait() -> None:
    office, a = Office(), place("a", 2)
    office.ask("one", a)
    office.ask("heavy", a, weight=2)
    assert a.inflight == 1
    assert office.scheduler.try_acquire(a, 1, office.now) is None
    office.end("one")
    assert office.served == ["one", "heavy"]


def test_the_first_of_the_choices_that_has_room_is_taken() -> None:
    office, a, b = Office(), place("a"), place("b")
    assert held(office.ask("one", a, b)).state is a
    assert held(office.ask("two", a, b)).state is b


def test_whichever_of_the_choices_is_free_first_is_taken() -> None:
    office, a, b = Office(), place("a"), place("b")
    office.ask("in-a", a)
    office.ask("in-b", b)
    waiter = office.ask("either", a, b)
    assert office.scheduler.depth() == {"a": 1, "b": 1}
    office.end("in-b")
    assert held(waiter).state is b
    assert office.scheduler.depth() == {"a": 0, "b": 0}


def test_a_hundred_of_one_client_do_not_delay_another_by_more_than_one() -> None:
    office, a = Office(), place("a")
    office.ask("first", a, client="hog")
    for number in range(100):
        office.ask(f"hog-{number}", a, client="hog")
    office.ask("single", a, client="other")
    office.end("first")
    office.end("hog-0")
    assert office.served == ["first", "hog-0", "single"]


def test_clients_that_all_wait_are_served_by_turns() -> None:
    office, a = Office(), place("a")
    office.ask("start", a)
    for client in "xyz":
        for number in range(3):
            office.ask(f"{client}{number}", a, client=client)
    for _ in range(9):
        office.end(office.served[-1])
    assert office.served[1:] == ["x0", "y0", "z0", "x1", "y1", "z1", "x2", "y2", "z2"]


def test_new_clients_that_keep_coming_starve_nobody() -> None:
    office, a = Office(), place("a")
    office.ask("start", a)
    office.ask("old-1", a, client="old")
    office.ask("old-2", a, client="old")
    for number in range(20):
        office.ask(f"new-{number}", a)
        office.end(office.served[-1])
    assert "old-2" in office.served[:4]


def test_interactive_requests_go_before_batch() -> None:
    office, a = Office(), place("a")
    office.ask("start", a)
    office.ask("batch", a, batch=True)
    office.ask("person", a)
    office.end("start")
    office.end("person")
    assert office.served == ["start", "person", "batch"]


def test_a_request_back_from_a_failed_attempt_is_first_in_its_class() -> None:
    office, a, b = Office(), place("a"), place("b")
    back = office.ask("back", b)
    office.ask("start", a)
    office.ask("waiting", a)
    office.end("back")
    back.choices, back.returning = (a,), True
    assert office.scheduler.enqueue(back, office.now) is False
    office.end("start")
    assert office.served[-1] == "back"


def test_a_heavy_one_is_not_starved_by_light_ones_behind_it() -> None:
    office, a = Office(), place("a", 4)
    for number in range(4):
        office.ask(f"light-{number}", a)
    office.ask("heavy", a, weight=3)
    for number in range(4, 8):
        office.ask(f"light-{number}", a)
    office.end("light-0")
    office.end("light-1")
    assert a.inflight == 2, "kept free for the heavy one"
    office.end("light-2")
    assert office.served[4] == "heavy"
    assert a.inflight == 4


def test_a_heavy_one_holds_up_only_the_backend_with_most_room() -> None:
    office, a, b = Office(), place("a", 4), place("b", 4)
    for number in range(4):
        office.ask(f"a{number}", a)
        office.ask(f"b{number}", b)
    office.ask("heavy", a, b, weight=4)
    office.ask("light", b)
    office.end("a0")
    office.end("a1")
    office.end("b0")
    assert "heavy" not in office.served
    assert office.served[-1] == "light"


def test_more_sequences_than_slots_are_the_whole_backend() -> None:
    office, a = Office(), place("a", 4)
    assert held(office.ask("many", a, weight=100)).slots == 4


def test_sequences_of_others_are_taken_off_the_slots_but_never_all() -> None:
    office, a = Office(), place("a", 4)
    a.foreign = 3
    office.ask("one", a)
    office.ask("two", a)
    assert a.inflight == 1
    a.foreign = 9
    office.end("one")
    assert (office.served, a.inflight) == (["one", "two"], 1)


def test_slots_that_others_give_back_are_seen_at_the_next_tick() -> None:
    office, a = Office(), place("a", 2)
    a.foreign = 1
    office.ask("one", a)
    office.ask("two", a)
    a.foreign = 0
    office.scheduler.tick(office.now)
    assert office.served == ["one", "two"]


# -- leaving, deadlines -----------------------------------------------------------------------------------------------


def test_a_request_that_left_gets_no_slot() -> None:
    office, a = Office(), place("a")
    office.ask("start", a)
    gone = office.ask("gone", a)
    office.ask("next", a)
    office.scheduler.withdraw(gone, office.now)
    office.end("start")
    assert office.served == ["start", "next"]


def test_a_slot_given_to_one_that_is_leaving_is_handed_on() -> None:
    office, a = Office(), place("a")
    office.ask("start", a)
    gone = office.ask("gone", a)
    office.ask("next", a)
    office.end("start")
    assert gone.granted is not None
    office.scheduler.withdraw(gone, office.now)
    assert office.served == ["start", "gone", "next"]
    assert a.inflight == 1
    office.scheduler.withdraw(gone, office.now)
    assert a.inflight == 1, "handed on once"


def test_a_heavy_one_that_leaves_lets_those_behind_it_through() -> None:
    office, a = Office(), place("a", 2)
    office.ask("start", a)
    heavy = office.ask("heavy", a, weight=2)
    office.ask("light", a)
    assert office.served == ["start"]
    office.scheduler.withdraw(heavy, office.now)
    assert office.served == ["start", "light"]


def test_at_its_deadline_a_waiter_is_late_and_out() -> None:
    office, a = Office(), place("a")
    office.ask("start", a)
    waiter = office.ask("brief", a, deadline=office.now + 5)
    office.scheduler.tick(office.now + 4.9)
    assert not waiter.late
    office.scheduler.tick(office.now + 5)
    assert (waiter.late, office.woken["brief"], office.scheduler.depth()) == (True, 1, {"a": 0})
    office.end("start")
    assert a.inflight == 0


def test_a_batch_request_that_never_finds_a_gap_ends_at_its_deadline() -> None:
    office, a = Office(), place("a")
    office.ask("p0", a)
    batch = office.ask("batch", a, batch=True, deadline=office.now + 10)
    for number in range(1, 21):
        office.ask(f"p{number}", a)
        office.end(f"p{number - 1}", after=1.0)
        office.scheduler.tick(office.now)
    assert (batch.late, batch.granted) == (True, None)


# -- limits of clients ------------------------------------------------------------------------------------------------


def test_a_client_at_its_limit_waits_while_others_pass() -> None:
    office, a = Office(), place("a", 4)
    office.ask("own-1", a, client="c", limit=1)
    office.ask("own-2", a, client="c", limit=1)
    office.ask("other", a)
    assert office.served == ["own-1", "other"]
    assert office.scheduler.try_acquire(a, 1, office.now, "c", 1) is None
    office.end("own-1")
    assert office.served == ["own-1", "other", "own-2"]


def test_the_limit_holds_over_all_backends() -> None:
    office, a, b = Office(), place("a"), place("b")
    slot = office.scheduler.try_acquire(a, 1, office.now, "c", 1)
    assert slot is not None
    assert office.scheduler.try_acquire(b, 1, office.now, "c", 1) is None
    office.ask("own", b, client="c", limit=1)
    assert office.served == []
    office.scheduler.release(slot, office.now)
    assert office.served == ["own"]


# -- changes ----------------------------------------------------------------------------------------------------------


def test_when_a_backend_goes_those_who_wait_for_it_plan_anew_and_keep_their_place() -> None:
    office, a, b = Office(), place("a"), place("b")
    office.ask("in-a", a)
    office.ask("in-b", b)
    mover = office.ask("mover", a)
    office.ask("later", b)

    def replan(_: float) -> bool:
        mover.choices = (b,)
        return True

    mover.replan = replan
    a.health.state = State.MISCONFIGURED
    office.scheduler.changed(a, office.now)
    office.end("in-b")
    assert office.served[-1] == "mover", "it came before the one that waits there already"


def test_a_request_with_no_backend_left_to_wait_for_is_woken() -> None:
    office, a = Office(), place("a")
    office.ask("start", a)
    waiter = office.ask("lost", a)
    waiter.replan = lambda _: False
    office.scheduler.changed(a, office.now)
    assert (office.woken["lost"], waiter.granted, waiter.late) == (1, None, False)
    assert not office.scheduler.waiters


def test_a_change_that_nobody_told_is_seen_at_the_next_tick_and_only_once() -> None:
    office, a = Office(), place("a")
    office.ask("start", a)
    office.ask("waits", a)
    office.scheduler.tick(office.now)
    assert office.replanned == []
    a.health.state = State.MISCONFIGURED
    office.scheduler.tick(office.now)
    office.scheduler.tick(office.now)
    assert office.replanned == ["waits"]
    a.health.state = State.READY
    office.scheduler.tick(office.now)
    assert office.replanned == ["waits", "waits"]


def test_nobody_is_let_in_where_a_request_may_not_go() -> None:
    office, a = Office(), place("a")
    a.cooldown_until = office.now + 10.0
    assert office.scheduler.try_acquire(a, 1, office.now) is None
    office.ask("one", a)
    assert office.served == []
    office.scheduler.tick(office.now + 10.0)
    assert office.served == ["one"]


def test_a_request_that_is_only_expected_takes_no_slot_before_it_is_planned() -> None:
    office, a = Office(), place("a")
    waiter = office.waiter("pending", a)
    waiter.pending = True
    office.scheduler.enqueue(waiter, office.now)
    office.ask("other", a)
    assert office.served == ["other"]
    assert office.scheduler.depth() == {"a": 1}


# -- routes.yaml is edited --------------------------------------------------------------------------------------------


def test_requests_on_a_removed_backend_are_counted_apart_from_its_successor_of_that_name() -> None:
    office = Office()
    before, after = place("a"), place("a")
    office.ask("old", before)
    before.health.remove(office.now)
    office.ask("new", after)
    office.ask("waits", after)
    assert (office.served, office.scheduler.depth()) == (["old", "new"], {"a": 1})
    office.end("old")
    assert office.served == ["old", "new"], "that was no slot of the new one"
    office.scheduler.forget(before)
    office.end("new")
    assert office.served == ["old", "new", "waits"]
