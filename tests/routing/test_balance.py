"""Which of several equal backends serves a session."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.snapshot import Balance
from gateway.domain.backend import BackendState
from gateway.domain.progress import Sample
from gateway.routing.balance import RATE_PRIOR, SPARED, best, missing_tokens, order
from gateway.routing.placements import Session
from tests.routing.parts import backend

unhurried = settings(deadline=None)  # the machine may be busy

names = st.text(min_size=1, max_size=12)
EVERY: tuple[Balance, ...] = ("affinity", "least_busy", "round_robin")


def ordered(members: list[BackendState], key: bytes = b"k", balance: Balance = "affinity", turn: int = 0) -> list[str]:
    return [m.name for m in order(members, balance, turn, lambda: Session(key))]


def replicas(*inflight: int, **keys: Any) -> list[BackendState]:
    return [backend(f"spark{number}", inflight=busy, **keys) for number, busy in enumerate(inflight)]


# -- affinity ---------------------------------------------------------------------------------------------------------

# Written down once: a session finds its cached prefix also after the gateway was restarted or updated.
GOLDEN = {
    b"session-1": ["spark1", "spark0", "spark3", "spark2"],
    b"session-2": ["spark1", "spark0", "spark3", "spark2"],
    b"session-3": ["spark3", "spark0", "spark2", "spark1"],
    b"": ["spark0", "spark3", "spark1", "spark2"],
}


@pytest.mark.parametrize("key", GOLDEN)
def test_a_sessions_order_is_the_same_in_every_process(key: bytes) -> None:
    assert ordered(replicas(0, 0, 0, 0), key) == GOLDEN[key]


@unhurried
@given(st.lists(names, min_size=2, max_size=6, unique=True), st.randoms(use_true_random=False), st.binary(max_size=40))
def test_the_order_does_not_depend_on_how_the_file_lists_them(members: list[str], random: Any, key: bytes) -> None:
    shuffled = list(members)
    random.shuffle(shuffled)
    assert ordered([backend(n) for n in members], key) == ordered([backend(n) for n in shuffled], key)


@unhurried
@given(st.lists(names, min_size=3, max_size=6, unique=True), st.data(), st.lists(st.binary(max_size=20), max_size=30))
def test_only_the_sessions_of_a_lost_replica_move(members: list[str], data: Any, keys: list[bytes]) -> None:
    lost = data.draw(st.sampled_from(members))
    for key in keys:
        before = ordered([backend(n) for n in members], key)
        after = ordered([backend(n) for n in members if n != lost], key)
        assert after == [n for n in before if n != lost]


def test_sessions_spread_evenly() -> None:
    firsts = Counter(ordered(replicas(0, 0, 0, 0), b"session %d" % n)[0] for n in range(2000))
    assert len(firsts) == 4
    assert all(400 < count < 600 for count in firsts.values())


def home(key: bytes = b"session-1") -> int:
    """The replica, of two, where a session belongs."""
    return int(ordered(replicas(0, 0), key)[0][-1])


def test_a_new_session_begins_at_its_name_while_that_has_one_more_in_flight() -> None:
    busy = [1, 1]
    busy[home()] = 2
    assert ordered(replicas(*busy), b"session-1")[0] == f"spark{home()}"


def test_a_new_session_begins_elsewhere_where_its_replica_has_two_more_in_flight() -> None:
    members = replicas(0, 0)
    pinned, other = members[home()], members[1 - home()]
    pinned.inflight = 2
    assert ordered(members, b"session-1")[0] == other.name
    pinned.inflight = 0
    assert ordered(members, b"session-1")[0] == pinned.name


# -- where the prefix is ----------------------------------------------------------------------------------------------

K = 3600  # bytes of 1,000 tokens


def at_home(tokens: int, new: int = 500, name: str = "spark0") -> Session:
    """A session of so many tokens, of which its replica knows all but the new ones."""
    size = tokens * K // 1000
    return Session(b"session-1", size, {name: size - new * K // 1000}, name)


def waiting(state: BackendState, tokens: int) -> None:
    """It computes so many tokens of prompts."""
    state.prefill.begin(tokens, 0.0)


def first(members: list[BackendState], session: Session) -> str:
    return order(members, "affinity", 0, lambda: session)[0].name


def test_a_long_session_stays_at_a_busy_replica() -> None:
    members = replicas(20, 0, slots=256)
    waiting(members[0], 4_000)
    assert first(members, at_home(30_000)) == "spark0"


def test_a_session_moves_where_it_is_answered_clearly_sooner() -> None:
    members = replicas(20, 0, slots=256)
    waiting(members[0], 100_000)
    assert first(members, at_home(30_000)) == "spark1"
    waiting(members[1], 100_000)
    assert first(members, at_home(30_000)) == "spark0"


def test_a_session_that_was_moved_stays_where_it_is_now() -> None:
    members = replicas(0, 0)
    for name in ("spark0", "spark1"):
        assert first(members, at_home(30_000, name=name)) == name


def test_a_slow_replica_counts_as_slow() -> None:
    members = replicas(0, 0, slots=256)
    waiting(members[0], 12_000)
    members[1].prefill.begin(12_000, 0.0).end()
    for state, rate in zip(members, (4_000.0, 4_000.0), strict=True):
        state.prefill.rate = rate
    assert first(members, at_home(8_000)) == "spark0"
    members[0].prefill.rate, members[1].prefill.rate = 500.0, 4_000.0
    assert first(members, at_home(8_000)) == "spark1"


def test_a_new_session_goes_where_the_least_prefill_waits() -> None:
    for busy in (0, 1):
        members = replicas(0, 0)
        waiting(members[busy], 8_000)
        assert {first(members, Session(b"%d" % n, 2000)) for n in range(8)} == {f"spark{1 - busy}"}


def test_a_branch_goes_to_the_replica_that_has_its_history() -> None:
    for name in ("spark0", "spark1"):
        branch = Session(b"new", 30 * K, {name: 27 * K})
        assert first(replicas(0, 0), branch) == name


def test_a_session_moves_to_a_replica_that_has_had_nothing_to_do() -> None:
    """Such as one that has come back: each turn there spares the wait at home."""
    members = replicas(0, 0, slots=256)
    for _ in range(20):
        members[0].prefill.begin(4_000, 0.0).end()
    waiting(members[0], 5_000)
    assert first(members, at_home(8_000)) == "spark1"
    for _ in range(3):  # sessions that have moved there, with whole prompts
        members[1].prefill.begin(40_000, 0.0).end()
    assert first(members, at_home(8_000)) == "spark1"
    for _ in range(20):
        members[1].prefill.begin(4_000, 0.0).end()
    assert first(members, at_home(8_000)) == "spark0"


def test_a_batch_goes_where_the_most_of_the_cache_is_free() -> None:
    members = replicas(0, 0)
    for used in (0, 1):
        members[used].progress.last = Sample(0.0, kv=0.8)
        members[1 - used].progress.last = Sample(0.0, kv=0.1)
        lines = [replace(at_home(8_000, name=f"spark{used}"), key=b"%d" % n, yields=True) for n in range(8)]
        assert {first(members, line) for line in lines} == {f"spark{1 - used}"}


def test_a_replica_that_is_gone_is_no_home() -> None:
    assert first(replicas(0, 0), at_home(8_000, name="gone")) in ("spark0", "spark1")


@unhurried
@given(
    st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 50)), min_size=2, max_size=5),
    st.integers(0, 400_000),
    st.data(),
)
def test_a_move_is_worth_what_it_computes_again(loads: list[tuple[int, int]], size: int, data: Any) -> None:
    members = replicas(*(running for _, running in loads), slots=256)
    for state, (tokens, _) in zip(members, loads, strict=True):
        waiting(state, tokens)
    at = data.draw(st.integers(0, len(members) - 1))
    session = Session(b"s", size, {f"spark{at}": data.draw(st.integers(0, size))}, f"spark{at}")
    chosen = next(state for state in members if state.name == first(members, session))
    if chosen is not members[at]:
        again = (chosen.prefill.tokens + missing_tokens(chosen, session)) / RATE_PRIOR
        stayed = (members[at].prefill.tokens + missing_tokens(members[at], session)) / RATE_PRIOR
        assert again * (1 - SPARED) < stayed + 0.02 * members[at].under_way


one_load = st.tuples(
    st.integers(0, 5_000),  # tokens that wait
    st.integers(0, 50_000),  # tokens computed lately
    st.integers(0, 6),  # sequences
    st.none() | st.floats(20.0, 20_000.0),  # tokens per second
    st.sampled_from(["ok", "ok", "ok", "suspect"]),
)


@unhurried
@given(st.lists(one_load, min_size=2, max_size=4), st.sampled_from([0, 500, 60_000]), st.integers(0, 4), st.booleans())
def test_the_best_is_the_first_in_order(loads: list[Any], size: int, at: int, yields: bool) -> None:
    members = []
    for number, (tokens, lately, running, rate, condition) in enumerate(loads):
        state = backend(f"spark{number}", condition, inflight=running)
        state.prefill.begin(lately, 0.0).end()
        state.prefill.rate = rate
        waiting(state, tokens)
        members.append(state)
    session = Session(b"s", size, {f"spark{at}": size * 9 // 10}, f"spark{at}", yields=yields)
    assert best(members, "affinity", 0, lambda: session, 1.0) is order(members, "affinity", 0, lambda: session, 1.0)[0]


def test_a_free_slot_is_worth_more_than_a_warm_prefix() -> None:
    members = replicas(0, 0, slots=1)
    members[home()].inflight = 1
    assert ordered(members, b"session-1")[0] == f"spark{1 - home()}"
    members[1 - home()].inflight = 1
    assert ordered(members, b"session-1")[0] == f"spark{home()}", "both are full: home is as good"


@pytest.mark.parametrize("balance", EVERY)
def test_a_suspect_comes_last_even_behind_a_full_one(balance: Balance) -> None:
    members = [backend("suspect", "suspect"), backend("full", inflight=4, slots=4), backend("free", inflight=1)]
    for turn in range(3):
        for key in (b"a", b"b", b"c"):
            assert ordered(members, key, balance, turn) == ["free", "full", "suspect"]


def test_no_key_is_made_where_there_is_no_choice() -> None:
    def never() -> Session:
        raise AssertionError("asked for")

    only = [backend("a")]
    assert order(only, "affinity", 0, never) == only
    assert order([], "affinity", 0, never) == []
    order(replicas(0, 0), "least_busy", 0, never)
    order(replicas(0, 0), "round_robin", 0, never)


# -- the other two ----------------------------------------------------------------------------------------------------


def test_least_busy_takes_the_fewest_in_flight() -> None:
    assert ordered(replicas(2, 0, 1), balance="least_busy") == ["spark1", "spark2", "spark0"]


def test_least_busy_takes_turns_among_equals() -> None:
    firsts = [ordered(replicas(1, 0, 0), balance="least_busy", turn=turn)[0] for turn in range(6)]
    assert set(firsts) == {"spark1", "spark2"}


def test_round_robin_takes_turns_whatever_is_in_flight() -> None:
    firsts = [ordered(replicas(3, 0, 1), balance="round_robin", turn=turn)[0] for turn in range(6)]
    assert firsts == ["spark0", "spark1", "spark2"] * 2


def test_round_robin_passes_over_a_full_one() -> None:
    members = replicas(4, 0, 0)
    assert "spark0" not in [ordered(members, balance="round_robin", turn=turn)[0] for turn in range(6)]
