"""How the runner of batches uses a store that is away or full."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.apps.batches import runner
from gateway.apps.batches.sqlite_store import SqliteBatchStore
from gateway.apps.batches.store import StoreAway, StoreFull


@pytest.mark.parametrize(("failure", "pause"), [(StoreFull("full"), "FULL"), (StoreAway("away"), "AWAY")])
async def test_a_store_that_is_full_is_asked_less_often_than_one_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: StoreAway, pause: str
) -> None:
    """A validation begins anew each time, and reads the whole file: that must not fill a core until there is room."""
    assert runner.FULL >= 5.0
    for name in ("FULL", "AWAY"):
        monkeypatch.setattr(runner, name, 0.0 if name == pause else 1000.0)
    no: Any = None
    running = runner.BatchRunner(SqliteBatchStore(tmp_path), no, no, cast(runner.Handle, no))
    failures = [failure]

    def work() -> str:
        if failures:
            raise failures.pop()
        return "done"

    async with asyncio.timeout(30):
        assert await running.patiently(work) == "done"
    running.close()
