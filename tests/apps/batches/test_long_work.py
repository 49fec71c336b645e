"""Files that take long to be validated, beside everyone else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.apps.batches.records import BatchRecord
from gateway.apps.batches.sqlite_store import SqliteBatchStore
from tests.apps.batches.filed import filed, jsonl, line


async def test_others_are_answered_while_a_large_file_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    indexing = SqliteBatchStore.index
    held = True

    def large(store: SqliteBatchStore, *args: Any) -> Iterator[BatchRecord | None]:
        while held:
            yield None
        yield from indexing(store, *args)

    monkeypatch.setattr(SqliteBatchStore, "index", large)
    async with filed() as f:
        first = await f.begin(jsonl([line("r")]))
        assert len((await f.client.files.list()).data) == 1
        assert (await f.client.batches.retrieve(first.id)).status == "validating"
        held = False
        assert (await f.ended(first)).status == "completed"
