"""Files of batches in Redis, and a Redis that does not take them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.apps.batches import redis_files
from gateway.apps.batches.records import FileRecord
from gateway.apps.batches.redis_files import CHUNK, KEYS
from gateway.apps.batches.redis_store import RedisBatchStore
from gateway.apps.batches.runner import now
from gateway.apps.batches.store import StoreAway, StoreFailed, StoreFull
from gateway.config.snapshot import Secret
from tests.apps.cluster.conftest import NewStore
from tests.apps.cluster.redis_server import RedisServer
from tests.apps.cluster.test_redis_store import MIB, new_batch, put_file


def test_a_file_is_kept_in_values_of_a_bounded_size(new_store: NewStore, redis: RedisServer) -> None:
    store = new_store()
    content = bytes(range(256)) * (5 * MIB // 256) + b"end"
    record = put_file(store, "file-big", content)
    with redis.client() as there:
        sizes = [there.strlen(key) for key in there.scan_iter(f"{KEYS}file:*")]
        assert (max(sizes), sum(sizes)) == (CHUNK, len(content))
        assert {there.ttl(key) for key in there.scan_iter(f"{KEYS}file:*")} == {-1}
        for at, size in ((0, 10), (CHUNK - 5, 10), (CHUNK, CHUNK), (len(content) - 3, 100), (len(content), 5)):
            assert store.read_file(record.id, at, size) == content[at : at + size]
        store.drop_file(record.id)
        assert list(there.scan_iter(f"{KEYS}file:*")) == []


def test_an_upload_that_never_ends_does_not_stay(new_store: NewStore, redis: RedisServer) -> None:
    store = new_store()
    cut, kept = store.new_file("file-cut"), store.new_file("file-lost")
    for writer in (cut, kept):
        writer.write(bytes(2 * CHUNK))
    with redis.client() as there:
        assert all(0 < there.ttl(key) <= redis_files.UPLOAD_KEPT for key in there.scan_iter(f"{KEYS}file:*"))
        cut.drop()
        assert len(list(there.scan_iter(f"{KEYS}file:*"))) == 2
        there.delete(f"{KEYS}file:file-lost:0")
    kept.finish()
    with pytest.raises(StoreAway):
        store.add_file(FileRecord("file-lost", "open", "batch", "in", 2 * CHUNK, now()))
    assert store.files("open") == []


def test_a_redis_that_takes_no_writes_is_away(new_store: NewStore, redis: RedisServer) -> None:
    store = new_store()
    record = new_batch(store, 3)
    with redis.client() as there:
        there.execute_command("REPLICAOF", "127.0.0.1", 1)
        try:
            for work in (
                lambda: store.add_result("batch_x", 0, b"row\n", ok=True),
                lambda: store.save(record),
                lambda: put_file(store, "file-new", b"{}\n"),
            ):
                with pytest.raises(StoreAway, match="READONLY"):
                    work()
        finally:
            there.execute_command("REPLICAOF", "NO", "ONE")
    assert store.add_result("batch_x", 0, b"row\n", ok=True).completed == 1


def test_a_redis_that_others_have_filled_is_full(new_store: NewStore, redis: RedisServer) -> None:
    store = new_store()
    record = new_batch(store, 3)
    store.check_room(1)  # holds for a moment, in which others write
    with redis.client() as there:
        there.execute_command("CONFIG", "SET", "maxmemory", 1)
        try:
            asked: tuple[Callable[[], object], ...] = (lambda: store.put_chunk("x", b"x"), lambda: store.save(record))
            for work in asked:
                with pytest.raises(StoreFull):
                    work()
        finally:
            there.execute_command("CONFIG", "SET", "maxmemory", 0)


def test_a_redis_that_refuses_has_failed_and_says_why(new_store: NewStore, redis: RedisServer) -> None:
    with redis.client() as there:
        there.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-hget")
    limited = RedisBatchStore(Secret(redis.url.replace("redis://", "redis://limited:x@")))
    with pytest.raises(StoreFailed, match="no permissions to run the 'hget' command"):
        limited.file("file-in")
    limited.close()
    with redis.client() as there:
        there.delete(f"{KEYS}files")
        there.set(f"{KEYS}files", "of somebody else")
    with pytest.raises(StoreFailed, match="wrong kind of value"):
        new_store().file("file-in")
