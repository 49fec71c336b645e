"""The store of a gateway that is alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.apps.batches import sqlite_store
from gateway.apps.batches.records import BatchRecord, FileRecord
from gateway.apps.batches.runner import now
from gateway.apps.batches.sqlite_store import SqliteBatchStore
from tests.apps.batches.filed import CHAT, jsonl, line


def begun(store: SqliteBatchStore, lines: int) -> BatchRecord:
    """A batch of so many lines that is to be validated."""
    writer = store.new_file("file-in")
    writer.write(content := jsonl([line(f"r{n}") for n in range(lines)]))
    writer.finish()
    store.add_file(FileRecord("file-in", "open", "batch", "in.jsonl", len(content), now()))
    record = BatchRecord("batch_x", "open", CHAT, "file-in", "24h", "validating", now(), now() + 1000)
    store.save(record)
    return record


def test_long_work_leaves_the_store_to_others_between_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "AT_A_TIME", 3)
    store = SqliteBatchStore(tmp_path)
    store.open()
    record = begun(store, 8)
    steps = 0
    validated: BatchRecord | None = None
    for validated in store.indexing(record, 1000, now()):  # noqa: B007
        steps += 1
        assert len(store.files("open")) == 1
        store.save(replace(record, id=f"batch_{steps}", status="completed"))
    assert validated is not None
    assert (validated.status, validated.total, steps) == ("in_progress", 8, 4)
    for number in range(8):
        store.add_result("batch_x", number, b"row\n", ok=True)
    record = store.move("batch_x", ("in_progress",), "finalizing", now())
    written = [store.usage("open").files for _ in store.finalizing(record, now())]
    assert len(written) > 6
    assert written[-1] == 2
    store.close()


def test_a_batch_that_is_stopped_at_its_very_end_keeps_its_results_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "AT_A_TIME", 3)
    store = SqliteBatchStore(tmp_path)
    store.open()
    store.index(begun(store, 8), 1000, now())
    for number in range(8):
        store.add_result("batch_x", number, b"row%d\n" % number, ok=True)
    record = store.move("batch_x", ("in_progress",), "finalizing", now())

    def rows() -> int:
        return int(store._db.execute("SELECT count(*) FROM results").fetchone()[0])

    for _ in store.finalizing(record, now()):
        if rows() < 8:
            break
    done = store.finalize(record, now()) if rows() else record  # once more, as after a disk that was full
    assert done.status == "completed"
    assert store.read_file(str(done.output_file_id), 0, 1000) == b"".join(b"row%d\n" % n for n in range(8))
    assert rows() == 0
    store.add_result("batch_x", 1, b"left\n", ok=True)
    store.close()
    store.open()
    assert rows() == 0
    store.close()


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
