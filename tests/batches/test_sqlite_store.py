"""The store of a gateway that is alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.batches import sqlite_store
from gateway.batches.records import BatchRecord, FileRecord
from gateway.batches.runner import now
from gateway.batches.sqlite_store import SqliteBatchStore
from tests.batches.filed import CHAT, jsonl, line


def test_a_failure_between_two_lines_leaves_the_store_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteBatchStore(tmp_path)
    store.open()
    writer = store.new_file("file-in")
    writer.write(content := jsonl([line("r0"), line("r1"), {}]))
    writer.finish()
    store.add_file(FileRecord("file-in", "open", "batch", "in.jsonl", len(content), now()))
    record = BatchRecord("batch_x", "open", CHAT, "file-in", "24h", "validating", now(), now() + 1000)
    store.save(record)

    def full(*_: object) -> bytes:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_store, "failed_row", full)
        with pytest.raises(OSError, match="full"):
            store.index(record, 1000, now())
    record = store.index(record, 1000, now())
    assert (record.status, record.total, record.failed) == ("in_progress", 3, 1)
    assert [one.number for one in store.take("batch_x", -1, 5, ())] == [0, 1]
    assert store.add_result("batch_x", 0, b"row\n", ok=True).completed == 1
    store.close()
