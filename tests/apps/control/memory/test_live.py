"""What a node holds now, beside its plan: compared only when the same backends run, with a warning above 10 %."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.control.memory.arithmetic import Demand
from gateway.apps.control.memory.live import TOLERANCE, beside_the_plan
from gateway.apps.control.memory.plan import NodePlan


def node(free: float | None = 20.0) -> NodePlan:
    demands = {name: Demand(name, target=40.0, resident=40.0) for name in ("big", "small")}
    return NodePlan("spark1", 120.0, "yes", free, "", demands)


@pytest.mark.parametrize(("used", "says"), [(100.0, None), (109.0, None), (111.0, "11% more"), (85.0, "15% less")])
def test_a_difference_above_ten_percent_is_a_warning(used: float, says: str | None) -> None:
    live = beside_the_plan(node(), used, ("big", "small"))
    assert live.planned == 100.0
    assert (live.warning is None) if says is None else (live.warning is not None and says in live.warning)


@pytest.mark.parametrize(
    ("running", "note"),
    [
        (("big",), "small not up"),
        (("big", "small", "guest"), "guest up, and not planned"),
        ((), "big, small not up"),
    ],
)
def test_other_backends_than_planned_are_not_compared(running: tuple[str, ...], note: str) -> None:
    live = beside_the_plan(node(), 50.0, running)
    assert (live.planned, live.warning, live.note) == (None, None, note)


def test_an_unknown_plan_is_not_compared() -> None:
    assert beside_the_plan(node(free=None), 50.0, ("big", "small")).planned is None


@given(st.floats(0.1, 1000), st.floats(0, 119))
def test_a_warning_comes_exactly_beyond_the_tolerance(used: float, free: float) -> None:
    live = beside_the_plan(node(free), used, ("big", "small"))
    planned = 120.0 - free
    assert (live.warning is not None) == (abs(used - planned) / planned > TOLERANCE)
