"""How a unit is, in words."""

from __future__ import annotations

import pytest

from gateway.apps.control.unit_commands import Unit
from gateway.apps.control.units import UnitState

UNIT = Unit("spark1", "ops@spark1", "spark-small")


@pytest.mark.parametrize(
    ("result", "status", "how"),
    [
        ("signal", "0", "it was stopped, or killed by a signal, while it started"),
        ("exit-code", "0", "it was not run: exit-code"),
        ("exit-code", "2", "exit code 2"),
        ("oom-kill", "137", "exit code 137, killed: often for want of memory, oom-kill"),
    ],
)
def test_a_unit_that_has_failed_says_how_its_process_ended(result: str, status: str, how: str) -> None:
    state = UnitState(UNIT, "failed", "failed", result, status)
    assert state.how == how
    assert state.ended == f"the unit has failed ({how}), and systemd starts it no more"
