"""How long engines took to start, and what is expected by that."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.apps.control.lanes import FILE, StartTimes, lanes_of
from tests.apps.control.machine import switched
from tests.apps.control.node import fleet

NODES = {"a": ("spark1",), "b": ("spark1",), "c": ("spark2",), "both": ("spark1", "spark2")}


def test_nodes_are_lanes_and_an_engine_over_two_waits_for_both(tmp_path: Path) -> None:
    times = StartTimes(tmp_path)
    times.seconds = {"a": [10.0, 20.0, 60.0], "b": [5.0], "c": [40.0], "both": [100.0]}
    lanes, expected = lanes_of(["a", "c", "b"], NODES.__getitem__, times)
    assert expected == 40.0
    assert lanes == [
        {"node": "spark1", "starts": [{"backend": "a", "seconds": 20.0}, {"backend": "b", "seconds": 5.0}]},
        {"node": "spark2", "starts": [{"backend": "c", "seconds": 40.0}]},
    ]
    assert lanes_of(["a", "c", "both"], NODES.__getitem__, times)[1] == 140.0
    del times.seconds["c"]
    assert lanes_of(["a", "c"], NODES.__getitem__, times)[1] is None
    assert lanes_of([], NODES.__getitem__, times) == ([], None)


async def test_a_start_that_worked_is_learned_and_shown_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = "{daily: [a], ds4: [c]}"
    async with fleet(tmp_path, monkeypatch, "a", away="c", modes=modes, nodes={}) as (gateway, _, _):
        first = (await gateway.client.post("/admin/mode", json={"mode": "ds4", "dry_run": True})).json()
        assert (first["lanes"][0]["starts"], first["expected"]) == ([{"backend": "c", "seconds": None}], None)
        await switched(gateway, "ds4")
        await gateway.until(lambda: (tmp_path / "data" / FILE).exists())
        await switched(gateway, "daily")
        again = await switched(gateway, "ds4")
        assert again["expected"] == again["lanes"][0]["starts"][0]["seconds"] == kept_seconds(tmp_path)["c"][0]
    assert set(kept_seconds(tmp_path)) == {"a", "c"}


def kept_seconds(folder: Path) -> dict[str, list[float]]:
    kept = StartTimes(folder / "data")
    kept.load()
    return kept.seconds


def test_a_file_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[")
    times = StartTimes(tmp_path)
    times.load()
    assert times.seconds == {}
