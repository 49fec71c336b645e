"""A target that does not start: what served before goes on being served where it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.domain.health_state import State
from tests.apps.control.machine import gateway_of, machine, switched

MODES = "{daily: [a], ds4: [c]}"


async def test_the_mode_before_is_in_force_again_when_its_engine_comes_back_and_the_target_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.apps.control.operations.LOOK", 0.02)
    async with machine(tmp_path, "a", away="c") as there, gateway_of(there, MODES) as gateway:
        there.faults["start c"] = "refuse"
        failed = await switched(gateway, "ds4")
        assert gateway.gateway.snapshot.mode == "ds4"
        await there.sims["a"].revive()  # its node has booted
        await gateway.until(lambda: gateway.gateway.snapshot.mode == "daily")
        await gateway.until(lambda: gateway.state("a") is State.READY)
        found = (await gateway.client.get(f"/admin/operations/{failed['id']}")).json()
        assert found["notes"] == ["mode daily is in force again: a answers, nothing of ds4 does"]


async def test_where_the_target_answers_after_all_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.apps.control.operations.LOOK", 0.02)
    async with machine(tmp_path, "a", away="c") as there, gateway_of(there, MODES) as gateway:
        there.faults["start c"] = "refuse"
        await switched(gateway, "ds4")
        operations = gateway.gateway.apps.control.operations
        await gateway.until(lambda: operations._way_back is not None)  # which begins behind the operation's end
        task = operations._way_back
        await there.sims["c"].revive()
        await gateway.until(lambda: gateway.state("c") is State.READY)
        await gateway.until(task.done)
        await there.sims["a"].revive()
        await gateway.until(lambda: gateway.gateway.fleet["a"].health.oks > 0)
        assert gateway.gateway.snapshot.mode == "ds4"
