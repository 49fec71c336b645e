"""Whether a request may have a backend started, and which others are stopped for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.control.memory.arithmetic import SYSTEM_GIB, Demand
from gateway.apps.control.starting import Room, StartMember, decide
from gateway.domain.health_state import StartDecision

NOW = 10_000.0
SPARK = 100.0 + SYSTEM_GIB  # GiB, of which 100 can be held


def called(name: str, idle: float | None = 600.0, ran: float = 3600.0, **more: Any) -> StartMember:
    """A backend that runs, and that only requests start."""
    running = StartMember(name, ("spark",), there=True, on_request=True, min_run=300.0, ran_since=NOW - ran)
    return replace(running, **{"idle_since": None if idle is None else NOW - idle, **more})


def target(*nodes: str) -> StartMember:
    return StartMember("target", nodes or ("spark",), on_request=True)


def room(memory: float | None = SPARK, free: float | None = None, **held: float | None) -> Room:
    demands = {n: Demand(n, needs=h, resident=h, verdict="unknown" if h is None else "yes") for n, h in held.items()}
    return Room(memory, free, demands)


def decided(*members: StartMember, may_stop: bool = True, **rooms: Room) -> StartDecision:
    return decide("target", {m.name: m for m in members}, rooms, NOW, may_stop=may_stop)


def test_what_fits_beside_the_others_stops_none() -> None:
    found = decided(target(), called("a"), spark=room(target=40, a=50))
    assert (found.refusal, found.stops) == ("", {})
    assert found.notes == ("fits on paper: nothing tells how much memory is free on spark now",)


def test_without_a_node_the_plan_has_no_say() -> None:
    found = decided(StartMember("target", on_request=True), called("a"), spark=room(a=50))
    assert (found.refusal, found.stops) == ("", {})
    assert found.notes == ("target has no `node`: the memory plan has no say in its start",)


def test_the_longest_idle_gives_way_first_and_no_more_than_needed() -> None:
    spark = room(target=60, a=30, b=30, c=30)
    found = decided(target(), called("a", 100), called("b", 900), called("c", 500), spark=spark)
    assert found.stops == {"b": 900, "c": 500}
    found = decided(
        target(), called("a", 100), called("b", 900), called("c", 500), spark=room(target=45, a=30, b=5, c=30)
    )
    assert found.stops == {"c": 500}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (called("a", None), "a has work"),
        (called("a", ran=60), "a runs for less than its min_run (300 s)"),
        (called("a", unstoppable="has no `stop` command"), "a has no `stop` command"),
        (called("a", expected=True), "beside a"),
        (called("a", on_request=False), "beside a"),
    ],
)
def test_who_does_not_give_way(other: StartMember, why: str) -> None:
    found = decided(target(), other, spark=room(target=60, a=60))
    assert found.refusal.startswith("it needs 60.0 GiB on spark, and 40.0 are free beside a")
    assert why in found.refusal
    assert found.stops == {}


def test_a_refusal_because_of_min_run_says_for_how_long() -> None:
    assert decided(target(), called("a", ran=60), spark=room(target=60, a=60)).wait == 240


def test_a_batch_request_stops_none() -> None:
    found = decided(target(), called("a"), spark=room(target=60, a=60), may_stop=False)
    assert found.refusal.endswith("; a batch request does not have a stopped")
    assert decided(target(), spark=room(target=60), may_stop=False).refusal == ""


def test_what_is_to_run_keeps_its_memory_while_it_is_away() -> None:
    away = StartMember("a", ("spark",), expected=True)
    assert "beside a" in decided(target(), away, spark=room(target=60, a=60)).refusal
    parked = StartMember("a", ("spark",))
    assert decided(target(), parked, spark=room(target=60, a=60)).refusal == ""


def test_memory_has_to_be_free_now_too() -> None:
    found = decided(target(), spark=room(target=60, free=30))
    assert found.refusal == "it needs 60.0 GiB on spark, and 30.0 are free there now"
    found = decided(target(), called("a"), spark=room(target=60, a=50, free=30))
    assert (found.refusal, list(found.stops), found.notes) == ("", ["a"], ())


def test_what_is_not_known_starts_only_where_nothing_else_runs() -> None:
    assert decided(target(), spark=room(target=None)).refusal == ""
    assert "launch.resident" in decided(target(), called("a", None), spark=room(target=None, a=10)).refusal
    assert list(decided(target(), called("a"), spark=room(target=None, a=10)).stops) == ["a"]
    assert (
        "what a holds on spark is not known"
        in decided(target(), called("a", None), spark=room(target=5, a=None)).refusal
    )
    assert decided(target(), called("a", None), spark=room(target=5, a=None, free=50)).refusal == ""
    assert "nodes.spark.memory" in decided(target(), called("a", None), spark=room(None, target=5, a=5)).refusal


def test_an_engine_over_two_nodes_needs_room_on_both() -> None:
    members = target("spark", "other"), called("a"), called("b", nodes=("other",)), called("c", nodes=("third",))
    found = decided(*members, spark=room(target=60, a=60), other=room(target=60, b=60), third=room(c=60))
    assert set(found.stops) == {"a", "b"}


def test_what_cannot_start_at_all_stops_none() -> None:
    never = Room(SPARK, None, {"target": Demand("target", 200.0, 200.0, verdict="no", reason="it is too big")})
    found = decided(target(), called("a"), spark=never)
    assert found.refusal.startswith("it cannot start on spark: it is too big")


# -- whatever the fleet is --------------------------------------------------------------------------------------------

NODES = ("one", "two")
amounts = st.one_of(st.none(), st.floats(0.5, 80))


@st.composite
def members(draw: st.DrawFn, name: str) -> StartMember:
    return StartMember(
        name,
        draw(st.sampled_from(((), ("one",), ("two",), ("one", "two")))),
        there=draw(st.booleans()),
        expected=draw(st.booleans()),
        on_request=draw(st.booleans()),
        idle_since=draw(st.one_of(st.none(), st.floats(0, NOW))),
        ran_since=draw(st.floats(0, NOW)),
        min_run=draw(st.sampled_from((0.0, 300.0))),
        unstoppable=draw(st.sampled_from(("", "", "has no `stop` command"))),
    )


@st.composite
def fleets(draw: st.DrawFn) -> tuple[dict[str, StartMember], dict[str, Room]]:
    found = {name: draw(members(name)) for name in ("target", "a", "b", "c", "d")}
    rooms = {}
    for node in NODES:
        held = {name: draw(amounts) for name, member in found.items() if node in member.nodes}
        free = draw(st.one_of(st.none(), st.floats(0, 100)))
        rooms[node] = room(draw(st.sampled_from((None, SPARK, SPARK))), free, **held)
    return found, rooms


@given(fleets(), st.booleans())
def test_none_is_ever_stopped_that_stays_or_has_work_or_is_young(
    fleet: tuple[dict[str, StartMember], dict[str, Room]], may_stop: bool
) -> None:
    found, rooms = fleet
    decision = decide("target", found, rooms, NOW, may_stop=may_stop)
    stopped = [found[name] for name in decision.stops]
    assert not stopped or (may_stop and not decision.refusal)
    for member in stopped:
        assert member.there and member.on_request and not member.expected and not member.unstoppable  # noqa: PT018
        assert member.idle_since is not None
        assert NOW - member.ran_since >= member.min_run
        assert set(member.nodes) & set(found["target"].nodes)


@given(fleets())
def test_what_is_started_fits_and_none_is_stopped_for_nothing(
    fleet: tuple[dict[str, StartMember], dict[str, Room]],
) -> None:
    found, rooms = fleet
    decision = decide("target", found, rooms, NOW)
    if decision.refusal:
        return
    assert fits(found, rooms, set(decision.stops))
    for spared in decision.stops:
        assert decide_without(found, rooms, set(decision.stops) - {spared}) is False


def fits(found: Mapping[str, StartMember], rooms: Mapping[str, Room], stopped: set[str]) -> bool:
    """Is what is known to be held on each node of the target at most what can be held there?"""
    for node in found["target"].nodes:
        rest = [m.name for m in found.values() if node in m.nodes and (m.there or m.expected or m.name == "target")]
        demands = {name: rooms[node].demands[name].held or 0.0 for name in rest if name not in stopped}
        memory = rooms[node].memory
        if rooms[node].demands["target"].held is not None and memory is not None:
            others = sum(demands.values()) - demands["target"]
            if others + demands["target"] > memory - SYSTEM_GIB + 1e-9:
                return False
    return True


def decide_without(found: Mapping[str, StartMember], rooms: Mapping[str, Room], stopped: set[str]) -> bool:
    """Would it have started if only these were stopped?"""
    free = {node: sum(rooms[node].demands[n].held or 0 for n in stopped if n in rooms[node].demands) for node in NODES}
    later = {node: replace(r, free=None if r.free is None else r.free + free[node]) for node, r in rooms.items()}
    left = {name: member for name, member in found.items() if name not in stopped}
    return decide("target", left, later, NOW, may_stop=False).refusal == ""
