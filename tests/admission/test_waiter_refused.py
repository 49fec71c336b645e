"""Which requests may not wait: the queue is full, or the wait would be too long."""

from __future__ import annotations

import pytest

from gateway.admission.backend_queue import QueueFull
from tests.admission.scheduling import Office, held, place


def test_no_more_wait_than_the_queue_is_long() -> None:
    office, a = Office(), place("a", length=2)
    for name in ("start", "one", "two"):
        office.ask(name, a)
    with pytest.raises(QueueFull, match="too many"):
        office.ask("three", a)
    assert office.scheduler.depth() == {"a": 2}
    office.end("start")
    office.ask("three", a)


def test_a_client_that_fills_the_queue_keeps_no_other_client_out() -> None:
    office, a = Office(), place("a", length=8)
    for number in range(9):
        office.ask(f"greedy-{number}", a, client="greedy")
    waiting = {"greedy": 8}
    for client, let_in in (("greedy", 0), ("b", 4), ("c", 3), ("d", 2), ("e", 2), ("f", 2), ("g", 2), ("h", 1)):
        for number in range(let_in):
            office.ask(f"{client}-{number}", a, client=client)
        waiting[client] = waiting.get(client, 0) + let_in
        with pytest.raises(QueueFull, match="too many"):
            office.ask("one more", a, client=client)
    assert office.scheduler.depth() == {"a": sum(waiting.values())}


def test_all_clients_together_wait_in_no_more_than_four_times_the_queue() -> None:
    office, a = Office(), place("a", length=2)
    for number in range(3):
        office.ask(f"greedy-{number}", a, client="greedy")
    for number in range(6):
        office.ask(f"r{number}", a)
    with pytest.raises(QueueFull):
        office.ask("one more", a)


def test_batch_requests_that_wait_keep_no_interactive_request_out() -> None:
    office, a = Office(), place("a", length=2)
    office.ask("start", a)
    for number in range(2):
        office.ask(f"batch-{number}", a, client="me", batch=True)
    for number in range(2):
        office.ask(f"chat-{number}", a, client="me")
    for batch in (True, False):
        with pytest.raises(QueueFull):
            office.ask("one more", a, client="me", batch=batch)


def test_a_queue_of_no_length_lets_nobody_wait() -> None:
    office, a = Office(), place("a", length=0)
    office.ask("start", a)
    with pytest.raises(QueueFull):
        office.ask("one", a)


def test_requests_that_take_either_of_two_backends_fill_two_queues() -> None:
    office, a, b = Office(), place("a", length=2), place("b", length=2)
    office.ask("in-a", a)
    office.ask("in-b", b)
    for number in range(4):
        office.ask(f"either-{number}", a, b)
    for choices in ((a, b), (a,), (b,)):
        with pytest.raises(QueueFull):
            office.ask("more", *choices)


def test_a_request_that_was_let_in_is_not_refused_when_it_waits_again() -> None:
    office, a = Office(), place("a", length=1)
    first = office.ask("first", a)
    office.ask("second", a)
    first.granted, spare = None, held(first)
    assert office.scheduler.enqueue(first, office.now) is False
    office.scheduler.release(spare, office.now)


def test_a_wait_that_would_be_too_long_is_refused_with_what_it_would_be() -> None:
    office, a = Office(), place("a", 2)
    for number in range(3):
        office.ask(f"r{number}", a)
    office.end("r0", after=30.0)  # 30 s each, 2 at a time
    office.ask("patient", a, deadline=office.now + 31)
    with pytest.raises(QueueFull, match="30 s") as refused:
        office.ask("hasty", a, deadline=office.now + 29)
    assert refused.value.seconds == 30.0


def test_the_expected_wait_counts_turns_and_not_everybody() -> None:
    office, a = Office(), place("a")
    office.ask("start", a)
    for number in range(50):
        office.ask(f"hog-{number}", a, client="hog")
    office.end("start", after=10.0)
    other = office.waiter("other", a, client="other")
    assert office.scheduler.expected_wait(other, office.now) == 20.0
    assert office.scheduler.expected_wait(office.waiter("again", a, client="hog"), office.now) == 500.0


def test_an_attempt_that_did_not_serve_says_nothing_of_how_long_a_slot_is_held() -> None:
    office, a = Office(), place("a")
    waiter = office.ask("failed", a)
    office.scheduler.release(held(waiter), office.now + 0.001, served=False)
    office.ask("start", a)
    office.now += 40.0
    assert office.scheduler.expected_wait(office.waiter("next", a), office.now) == 40.0
