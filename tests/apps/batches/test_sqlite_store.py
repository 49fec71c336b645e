"""The store of a gateway that is alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.apps.batches import sqlite_store
from gateway.apps.batches.records import BatchRecord, FileRecord
from gateway.apps.batches.runner import now
from gateway.apps.batches.sqlite_store import SqliteBatchStore
from gateway.apps.batches.store import NoEntry, Page
from tests.apps.batches.filed import CHAT, jsonl, last, line


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
    for validated in store.index(record, 1000, 10**9, now()):  # noqa: B007
        steps += 1
        assert len(store.files("open")) == 1
        store.save(replace(record, id=f"batch_{steps}", status="completed"))
    assert validated is not None
    assert (validated.status, validated.total, steps) == ("in_progress", 8, 4)
    for number in range(8):
        store.add_result("batch_x", number, b"row\n", ok=True)
    record = store.move("batch_x", ("in_progress",), "finalizing", now())
    written = [store.usage("open").files for _ in store.finalize(record, now())]
    assert len(written) > 6
    assert written[-1] == 2
    store.close()


def test_a_batch_that_is_stopped_at_its_very_end_keeps_its_results_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "AT_A_TIME", 3)
    store = SqliteBatchStore(tmp_path)
    store.open()
    last(store.index(begun(store, 8), 1000, 10**9, now()))
    for number in range(8):
        store.add_result("batch_x", number, b"row%d\n" % number, ok=True)
    record = store.move("batch_x", ("in_progress",), "finalizing", now())

    def rows() -> int:
        return int(store._db.execute("SELECT count(*) FROM results").fetchone()[0])

    for _ in store.finalize(record, now()):
        if rows() < 8:
            break
    done = last(store.finalize(record, now())) if rows() else record  # once more, as after a disk that was full
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
            last(store.index(record, 1000, 10**9, now()))
    record = last(store.index(record, 1000, 10**9, now()))
    assert (record.status, record.total, record.failed) == ("in_progress", 3, 1)
    assert [one.number for one in store.take("batch_x", -1, 5, ())] == [0, 1]
    assert store.add_result("batch_x", 0, b"row\n", ok=True).completed == 1
    store.close()


def test_a_page_of_batches_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteBatchStore(tmp_path)
    store.open()
    for number in range(30):
        owner = "other" if number % 3 == 0 else "open"
        at = 1000 + number // 7  # many of one second
        store.save(BatchRecord(f"batch_{number}", owner, CHAT, "file-in", "24h", "completed", at, at))
    store.save(replace(store.batches("open", Page(1))[0], status="failed"))  # keeps its place
    mine = [f"batch_{number}" for number in reversed(range(30)) if number % 3]
    decoded = 0
    decode = sqlite_store._decode_record

    def counted(data: bytes) -> BatchRecord:
        nonlocal decoded
        decoded += 1
        return decode(data)

    monkeypatch.setattr(sqlite_store, "_decode_record", counted)
    for descending, names in ((True, mine), (False, mine[::-1])):
        found: list[str] = []
        after, more = None, True
        while more:
            page = [one.id for one in store.batches("open", Page(4, after, descending))]
            more = len(page) > 4
            found += page[:4]
            after = found[-1]
        assert found == names
    decoded = 0
    assert len(store.batches("open", Page(1))) == decoded == 2
    for unknown in ("batch_0", "batch_x", ""):  # another client's, and none
        with pytest.raises(NoEntry):
            store.batches("open", Page(4, unknown))
    store.close()


def test_a_store_of_an_older_gateway_gets_the_indexes_that_it_lacks(tmp_path: Path) -> None:
    store = SqliteBatchStore(tmp_path)
    store.open()
    indexes = "SELECT name FROM sqlite_schema WHERE type = 'index' AND name LIKE '%s_%'"
    found = sorted(store._db.execute(indexes).fetchall())
    assert len(found) >= 3
    for name in ("files_of", "batches_of", "batches_in"):
        store._db.execute(f"DROP INDEX {name}")
    store.close()
    store.open()
    assert sorted(store._db.execute(indexes).fetchall()) == found
    store.close()


def test_a_line_that_an_admin_has_ended_is_a_row_of_the_error_file_and_no_failure(tmp_path: Path) -> None:
    store = SqliteBatchStore(tmp_path)
    store.open()
    last(store.index(begun(store, 3), 1000, 10**9, now()))
    for number, ok in enumerate((True, False, None)):
        found = store.add_result("batch_x", number, b"row%d\n" % number, ok=ok)
    assert (found.completed, found.failed, found.cancelled, found.done) == (1, 1, 1, 3)
    done = last(store.finalize(store.move("batch_x", ("in_progress",), "finalizing", now()), now()))
    assert (done.failed, done.cancelled) == (1, 1)
    assert store.read_file(str(done.output_file_id), 0, 1000) == b"row0\n"
    assert store.read_file(str(done.error_file_id), 0, 1000) == b"row1\nrow2\n"
    store.close()
