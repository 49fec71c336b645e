"""The threads that use a store that is away or full."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.apps.batches import store as store_module
from gateway.apps.batches.sqlite_store import SqliteBatchStore
from gateway.apps.batches.store import StoreAway, StoreFull, StoreThreads


@pytest.mark.parametrize(("failure", "pause"), [(StoreFull("full"), "FULL"), (StoreAway("away"), "AWAY")])
async def test_a_store_that_is_full_is_asked_less_often_than_one_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: StoreAway, pause: str
) -> None:
    """A validation begins anew each time, and reads the whole file: that must not fill a core until there is room."""
    assert store_module.FULL >= 5.0
    for name in ("FULL", "AWAY"):
        monkeypatch.setattr(store_module, name, 0.0 if name == pause else 1000.0)
    services: Any = SimpleNamespace(on_short=None)
    threads = StoreThreads(SqliteBatchStore(tmp_path), services)
    failures = [failure]

    def work() -> str:
        if failures:
            raise failures.pop()
        return "done"

    async with asyncio.timeout(30):
        assert await threads.patiently(work) == "done"
    threads.close()
