"""The store of batches that gateways share, over a real Redis: leases, who leads, and what is held in memory."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from gateway.apps.batches import redis_files
from gateway.apps.batches.records import BatchRecord, FileRecord
from gateway.apps.batches.redis_files import CHUNK, KEYS
from gateway.apps.batches.redis_store import RedisBatchStore
from gateway.apps.batches.runner import now
from tests.apps.batches.filed import CHAT, jsonl, last, line
from tests.apps.cluster.conftest import NewStore
from tests.apps.cluster.redis_server import RedisServer
from tests.waiting import wait_until

MIB = 1024 * 1024


LINE_MOST = MIB


def put_file(store: RedisBatchStore, name: str, content: bytes) -> FileRecord:
    writer = store.new_file(name)
    writer.write(content)
    writer.finish()
    record = FileRecord(name, "open", "batch", "in.jsonl", len(content), now())
    store.add_file(record)
    return record


def new_batch(store: RedisBatchStore, count: int, *, index: bool = True) -> BatchRecord:
    """A batch of so many lines."""
    file = put_file(store, "file-in", jsonl([line(f"r{n}") for n in range(count)]))
    record = BatchRecord("batch_x", "open", CHAT, file.id, "24h", "validating", now(), now() + 1000)
    store.save(record)
    return last(store.index(record, LINE_MOST, 10**9, now())) if index else record


def numbers(store: RedisBatchStore, most: int, running: tuple[int, ...] = ()) -> list[int]:
    return [one.number for one in store.take("batch_x", -1, most, running)]


def test_a_line_is_leased_to_one_gateway(new_store: NewStore) -> None:
    one, other = new_store(), new_store()
    new_batch(one, 10)
    assert numbers(one, 4) == [0, 1, 2, 3]
    assert numbers(other, 4) == [4, 5, 6, 7]
    assert numbers(one, 4, (0, 1, 2, 3)) == [8, 9]
    assert numbers(other, 4, (4, 5, 6, 7)) == []


def test_lines_whose_answer_was_lost_are_leased_again_to_the_same_gateway(new_store: NewStore) -> None:
    store = new_store()
    new_batch(store, 10)
    store.take("batch_x", -1, 3, ())
    assert sorted(numbers(store, 3)) == [0, 1, 2]
    assert sorted(numbers(store, 3, (0, 2))) == [1, 3, 4]


def test_the_first_result_of_a_line_counts_and_none_runs_again(new_store: NewStore) -> None:
    one, other = new_store(), new_store()
    new_batch(one, 3)
    taken = numbers(one, 3)
    one.release("batch_x")
    record = one.add_result("batch_x", 0, b"first\n", ok=True)
    record = other.add_result("batch_x", 0, b"second\n", ok=False)
    assert (record.completed, record.failed) == (1, 0)
    assert (taken, sorted(numbers(other, 3))) == ([0, 1, 2], [1, 2])


def test_a_line_that_an_admin_has_ended_is_a_row_of_the_error_file_and_no_failure(new_store: NewStore) -> None:
    store = new_store()
    new_batch(store, 3)
    numbers(store, 3)
    for number, ok in enumerate((True, False, None)):
        found = store.add_result("batch_x", number, b"row%d\n" % number, ok=ok)
    assert (found.completed, found.failed, found.cancelled, found.done) == (1, 1, 1, 3)
    store.move("batch_x", ("in_progress",), "finalizing", now())
    done = last(store.finalize(found, now()))
    assert (done.failed, done.cancelled) == (1, 1)
    assert store.read_file(str(done.error_file_id), 0, 1000) == b"row1\nrow2\n"


def test_lines_are_taken_over_once_their_lease_has_expired(
    new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_files, "LEASE", 0.4)
    gone, other = new_store(), new_store()
    new_batch(gone, 6)
    assert numbers(gone, 3) == [0, 1, 2]
    found: list[int] = []

    def taken_over() -> bool:
        other.renew(["batch_x"])
        found.extend(numbers(other, 1, tuple(found)))
        return len(found) == 6

    wait_until(taken_over)
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    assert found[:3] == [3, 4, 5]
    gone.add_result("batch_x", 0, b"late\n", ok=True)  # it was frozen, and has the answer still
    record = other.add_result("batch_x", 0, b"again\n", ok=True)
    assert record.completed == 1


def test_a_lease_that_is_renewed_is_kept(new_store: NewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_files, "LEASE", 0.4)
    one, other = new_store(), new_store()
    new_batch(one, 3)
    assert numbers(one, 3) == [0, 1, 2]
    until = time.monotonic() + 1.2

    def later() -> bool:
        one.renew(["batch_x"])
        assert numbers(other, 3) == []
        return time.monotonic() > until

    wait_until(later)


def test_no_lease_expires_because_redis_was_away(
    new_store: NewStore, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_files, "LEASE", 1.0)
    one, other = new_store(), new_store()
    new_batch(one, 3)
    for store in (one, other):
        store.renew(["batch_x"])
    assert numbers(one, 3) == [0, 1, 2]
    with redis.client() as there:
        lease = f"{KEYS}workers:batch_x"
        there.zadd(lease, dict.fromkeys(there.zrange(lease, 0, -1), 1))  # as after a time away
        there.set(f"{KEYS}beat", 1)
    other.renew(["batch_x"])
    assert numbers(other, 3) == []


def test_who_no_longer_leads_writes_nothing(new_store: NewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that was frozen while it wrote the files of a batch wakes up after another one has written them."""
    monkeypatch.setattr(redis_files, "LEASE", 0.2)
    frozen, other = new_store(), new_store()
    record = new_batch(frozen, 40)
    for number in range(40):
        frozen.add_result("batch_x", number, b"row\n", ok=True)
    record = frozen.move("batch_x", ("in_progress",), "finalizing", now())
    lead = frozen._lead

    def freeze(batch: str) -> None:
        lead(batch)
        monkeypatch.setattr(frozen, "_lead", lead)

        def ended() -> bool:
            return last(other.finalize(record, now())).status == "completed"

        wait_until(ended)

    monkeypatch.setattr(frozen, "_lead", freeze)
    done = last(frozen.finalize(record, now()))
    assert done.status == "completed"
    assert done.output_file_id is not None
    assert other.read_file(done.output_file_id, 0, 1000) == b"row\n" * 40


def test_only_one_gateway_validates_a_batch(new_store: NewStore) -> None:
    one, other = new_store(), new_store()
    record = new_batch(one, 3, index=False)
    assert one.decide("lead", record.id) == 1
    assert last(other.index(record, LINE_MOST, 10**9, now())).status == "validating"
    one.release(record.id)
    assert last(other.index(record, LINE_MOST, 10**9, now())).status == "in_progress"


def test_of_two_that_move_a_batch_one_does(new_store: NewStore) -> None:
    one, other = new_store(), new_store()
    new_batch(one, 3)
    assert one.move("batch_x", ("in_progress",), "cancelling", 7).status == "cancelling"
    late = other.move("batch_x", ("in_progress",), "finalizing", 8, ending="completed")
    assert (late.status, late.stamps.get("finalizing_at")) == ("cancelling", None)


def test_many_lines_take_little_memory_of_the_gateway(new_store: NewStore, redis: RedisServer) -> None:
    """What a gateway holds does not grow with the lines of a batch: 20,000 of them are a file of 4 MB."""
    store = new_store()
    count = 20_000
    record = new_batch(store, count, index=False)
    tracemalloc.start()
    try:
        record = last(store.index(record, LINE_MOST, 10**9, now()))
        assert record.total == count
        assert len(store.take("batch_x", -1, 16, ())) == 16
        record = store.move("batch_x", ("in_progress",), "finalizing", now(), ending="expired")
        record = last(store.finalize(record, now()))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (record.status, record.failed) == ("expired", count)
    assert most < 8 * MIB


def test_a_gateway_that_knows_a_batch_from_earlier_neither_validates_nor_writes_it_again(new_store: NewStore) -> None:
    """What it has read of the batch may be older than what the others have done, and who led may be gone."""
    one, late = new_store(), new_store()
    validating = new_batch(one, 3, index=False)
    last(one.index(validating, LINE_MOST, 10**9, now()))
    one.add_result("batch_x", 0, b"row\n", ok=True)
    one.release("batch_x")
    record = last(late.index(validating, LINE_MOST, 10**9, now()))
    assert (record.status, record.completed) == ("in_progress", 1)
    finalizing = one.move("batch_x", ("in_progress",), "finalizing", now(), ending="expired")
    done = last(one.finalize(finalizing, now()))
    one.release("batch_x")
    assert last(late.finalize(finalizing, now())) == done
    assert (done.completed, done.failed) == (1, 2)


def test_who_no_longer_leads_does_not_end_the_validation(new_store: NewStore) -> None:
    one, other = new_store(), new_store()
    record = new_batch(one, 3, index=False)
    assert one.decide("lead", record.id) == 1
    one.release(record.id)
    assert other.decide("lead", record.id) == 1
    assert one.move(record.id, ("validating",), "in_progress", now(), total=1).status == "validating"


def test_lines_whose_validation_was_not_heard_of_are_no_duplicates(
    new_store: NewStore, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends behind the command: the client of Redis sends that again."""
    store = new_store()
    record = new_batch(store, 3, index=False)
    decide = store.decide

    def twice(operation: str, *args: Any) -> Any:
        if operation == "index":
            decide(operation, *args)
        return decide(operation, *args)

    monkeypatch.setattr(store, "decide", twice)
    assert last(store.index(record, LINE_MOST, 10**9, now())).failed == 0
    assert numbers(store, 5) == [0, 1, 2]
    with redis.client() as there:
        assert not there.exists(f"{KEYS}names:batch_x")  # needed by the validation only


def test_a_batch_whose_input_was_lost_in_part_fails(new_store: NewStore, redis: RedisServer) -> None:
    store = new_store()
    content = jsonl([line(f"r{n}", "x" * 500) for n in range(4000)])
    assert len(content) > 2 * CHUNK
    file = put_file(store, "file-in", content)
    with redis.client() as there:
        there.delete(f"{KEYS}file:file-in:1")
    record = BatchRecord("batch_x", "open", CHAT, file.id, "24h", "validating", now(), now() + 1000)
    store.save(record)
    record = last(store.index(record, LINE_MOST, 10**9, now()))
    assert (record.status, record.errors[0]["code"]) == ("failed", "input_file_lost")
