"""Requests of a server whose slots share a memory: together they never reserve more than it has."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.backend_queue import Waiter
from gateway.domain.tokens import answer_most, has_room, needed, share_of, usable
from tests.admission.scheduling import Office, held, place

POOLS = st.integers(256, 10**6)
SLOTS = st.integers(1, 64)
PROMPTS = st.integers(0, 10**6)
LIMITS = st.none() | st.integers(0, 10**6)
ASKS = st.lists(st.tuples(PROMPTS, LIMITS, st.integers(1, 8)), max_size=30)


@given(PROMPTS, LIMITS, st.integers(0, 8), POOLS, SLOTS)
def test_a_request_reserves_its_prompt_and_its_answers_and_never_more_than_there_is(
    prompt: int, limit: int | None, answers: int, pool: int, slots: int
) -> None:
    need = needed(prompt, limit, answers, pool, slots)
    assert 0 <= need <= usable(pool) < pool
    most = answer_most(prompt, pool, slots) if limit is None else limit
    assert need == min(usable(pool), prompt + answers * most)


@given(PROMPTS, POOLS, SLOTS)
def test_an_answer_without_a_limit_gets_one_that_leaves_the_others_their_shares(
    prompt: int, pool: int, slots: int
) -> None:
    most, share = answer_most(prompt, pool, slots), share_of(pool, slots)
    assert most >= 1
    assert most <= max(share - prompt, share // 4, 1)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=16), POOLS)
def test_short_requests_without_a_limit_fill_all_slots(prompts: list[int], pool: int) -> None:
    slots, reserved = len(prompts), 0
    share = share_of(pool, slots)
    for prompt in prompts:
        need = needed(min(prompt, share // 2), None, 1, pool, slots)
        assert has_room(need, reserved, 0, pool, slots)
        reserved += need


@given(POOLS, SLOTS, ASKS, st.integers(0, 8))
def test_requests_that_were_let_in_together_fit_the_token_pool(
    pool: int, slots: int, asks: Sequence[tuple[int, int | None, int]], others: int
) -> None:
    reserved = 0
    for prompt, limit, answers in asks:
        need = needed(prompt, limit, answers, pool, slots)
        if has_room(need, reserved, others, pool, slots):
            reserved += need
            assert reserved + others * share_of(pool, slots) <= usable(pool)


@given(st.integers(0, 10**7), POOLS, SLOTS)
def test_alone_every_request_may_go(need: int, pool: int, slots: int) -> None:
    assert has_room(min(need, usable(pool)), 0, 0, pool, slots)


# -- in the waiting set ------------------------------------------------------------------------------------------------


def ask(office: Office, name: str, tokens: int, *choices: object) -> Waiter:
    waiter = office.waiter(name, *choices)  # type: ignore[arg-type]  # passed on as they are
    waiter.tokens = {id(choice): tokens for choice in choices}
    office.scheduler.enqueue(waiter, office.now)
    return waiter


def test_a_request_waits_for_tokens_though_slots_are_free_and_gets_them_in_its_turn() -> None:
    office, a = Office(), place("a", 4)
    a.saw_slots(4, 1600)  # 1,500 to use
    ask(office, "one", 900, a)
    ask(office, "two", 900, a)
    ask(office, "three", 100, a)
    assert (office.served, a.inflight, a.reserved_tokens) == (["one"], 1, 900)  # the third does not overtake the second
    assert office.scheduler.try_acquire(a, 1, office.now, tokens=100) is None
    assert office.scheduler.is_busy(a, 1, 100)
    office.end("one")
    assert (office.served, a.inflight, a.reserved_tokens) == (["one", "two", "three"], 2, 1000)
    office.end("two")
    office.end("three")
    assert (a.inflight, a.reserved_tokens) == (0, 0)


def test_a_memory_that_was_full_before_its_size_was_known_is_taken_for_one_of_one_window() -> None:
    a = place("a", 4)
    a.saw_model("m", 4096)
    assert a.pool is None
    a.saw_pool_full()
    assert a.pool == 4096


def test_a_request_that_needs_everything_goes_alone() -> None:
    office, a = Office(), place("a", 4)
    a.saw_slots(4, 1600)
    ask(office, "all", 1500, a)
    ask(office, "one", 1, a)
    assert office.served == ["all"]
    office.end("all")
    assert office.served == ["all", "one"]


def test_requests_of_others_count_as_an_even_share_each() -> None:
    office, a = Office(), place("a", 4)
    a.saw_slots(4, 1600)
    a.foreign = 2  # 375 each
    ask(office, "one", 800, a)
    assert office.served == []
    ask(office, "two", 700, place("b"))
    a.foreign = 1
    office.scheduler.tick(office.now)
    assert office.served == ["two", "one"]


def test_one_that_waits_at_two_backends_makes_way_at_the_other_when_it_is_served() -> None:
    office, a, b = Office(), place("a", 4), place("b", 4)
    for state in (a, b):
        state.saw_slots(4, 1600)
    ask(office, "in-a", 1000, a)
    ask(office, "in-b", 1000, b)
    ask(office, "either", 1000, a, b)
    ask(office, "small", 400, b)
    assert office.served == ["in-a", "in-b"]
    office.end("in-a")
    assert office.served == ["in-a", "in-b", "either", "small"]


Turn = tuple[int, bool]


@given(st.lists(st.tuples(st.integers(1, 2000), st.booleans()), max_size=40), st.integers(1, 4))
@settings(max_examples=100)
def test_in_any_order_the_reserved_tokens_are_those_of_the_running_requests(turns: list[Turn], slots: int) -> None:
    office, a, running = Office(), place("a", slots), dict[str, int]()
    a.saw_slots(slots, 3200)
    for number, (tokens, ends) in enumerate(turns):
        name = f"r{number}"
        ask(office, name, min(tokens, usable(3200)), a)
        if ends and running:
            first = next(iter(running))
            office.end(first)
        running = {n: held(w).tokens for n, w in office.waiters.items() if w.granted is not None}
        assert a.reserved_tokens == sum(running.values())
        assert a.reserved_tokens <= usable(3200)
        assert a.inflight == len(running) <= slots
        waiting = list(office.scheduler.waiters)
        if waiting and len(running) < slots:
            assert not has_room(waiting[0].tokens_at(a), a.reserved_tokens, 0, 3200, slots)
