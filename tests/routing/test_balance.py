"""Which of several equal backends serves a session."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.snapshot import Balance
from gateway.domain.backend import BackendState
from gateway.routing.balance import order
from tests.routing.parts import backend

unhurried = settings(deadline=None)  # the machine may be busy

names = st.text(min_size=1, max_size=12)
EVERY: tuple[Balance, ...] = ("affinity", "least_busy", "round_robin")


def ordered(members: list[BackendState], key: bytes = b"k", balance: Balance = "affinity", turn: int = 0) -> list[str]:
    return [m.name for m in order(members, balance, turn, lambda: key)]


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


def test_a_session_stays_while_its_replica_has_one_more_in_flight() -> None:
    busy = [1, 1]
    busy[home()] = 2
    assert ordered(replicas(*busy), b"session-1")[0] == f"spark{home()}"


def test_a_session_leaves_a_replica_that_has_two_more_in_flight_and_comes_back() -> None:
    members = replicas(0, 0)
    pinned, other = members[home()], members[1 - home()]
    pinned.inflight = 2
    assert ordered(members, b"session-1")[0] == other.name
    pinned.inflight = 0
    assert ordered(members, b"session-1")[0] == pinned.name, "a deviation does not re-pin"


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
    def never() -> bytes:
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
