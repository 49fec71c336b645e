"""The store that several gateways share: files and batches in Redis (`server.shared`).

The content of a file is a row of values of `CHUNK` bytes. A line is leased to one gateway at a time; the leases of a
gateway last as long as it renews them (`lua/batches.lua` decides). A result counts once, whoever brings it first. One
gateway at a time validates a batch or writes its files: it leads, and what it writes is refused once it does not.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.apps.batches.lines import BatchLine, LineError, failed_row, in_groups, read_lines
from gateway.apps.batches.records import KINDS, BatchRecord, FileRecord, LineRecord, Status
from gateway.apps.batches.redis_files import (
    CHUNK,
    KEYS,
    KEYS_AT_ONCE,
    UPLOAD_KEPT,
    ChunkReader,
    ChunkWriter,
    FileLost,
    RedisFiles,
    asking,
    grouped,
)
from gateway.apps.batches.store import (
    EMPTY_FILE,
    EXPIRED,
    LOST,
    BatchGone,
    NoEntry,
    Page,
    StoreAway,
    Usage,
    duplicate,
    output_files,
    too_much,
    with_model,
)

LINES_AT_ONCE = 200  # of a validation
GROUPS_AT_ONCE = 25  # so many times that, between two looks at what its client keeps
ROWS_AT_ONCE = 16  # answers that are held while the files are written

SHOWN = "record", "completed", "failed", "cancelled", "stored"  # the fields of a batch that its script answers with

_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode
_decode_record = msgspec.json.Decoder(BatchRecord).decode


class LeadLost(Exception):
    """Another gateway may do what this one was doing."""


class RedisBatchStore(RedisFiles):
    """May be used by several threads."""

    threads = 4
    shared = True
    there = True

    @asking
    def open(self) -> None:
        self.ask("PING")

    def close(self) -> None:
        with suppress(StoreAway):
            for record in self.unfinished():
                self.release(record.id)
        self.redis.close()

    @asking
    def expired_files(self, now: int) -> list[str]:
        used = {record.input_file_id for record in self.unfinished()}
        names = [name.decode() for name in self.ask("ZRANGEBYSCORE", f"{KEYS}expiring", "-inf", now)]
        return [name for name in names if name not in used]

    @asking
    def usage(self, owner: str) -> Usage:
        files = self.files(owner)
        batches = [record for record in self.unfinished() if record.owner == owner]
        size = sum(file.bytes for file in files) + sum(batch.stored for batch in batches)
        return Usage(len(files), size, len(batches))

    # -- batches --------------------------------------------------------------------------------------------------

    @asking
    def save(self, record: BatchRecord) -> None:
        order = self.order(record.created_at)
        named = ("owner", record.owner, "status", record.status, "record", msgspec.json.encode(record))
        counts = ("total", 0, "completed", 0, "failed", 0, "cancelled", 0, "stored", 0, "next", 0)
        commands: list[tuple[Any, ...]] = [
            ("HSET", _batch(record.id), *named, *counts),
            ("SADD", f"{KEYS}unfinished", record.id),
            ("ZADD", f"{KEYS}batches", order, record.id),
            ("ZADD", f"{KEYS}batches:{record.owner}", order, record.id),
        ]
        self.each(commands, together=True)

    @asking
    def batch(self, name: str) -> BatchRecord | None:
        return _record(self.decide("record", name))

    @asking
    def batches(self, owner: str, page: Page) -> list[BatchRecord]:
        key, turned, first = f"{KEYS}batches:{owner}", "REV" if page.descending else "", 0
        if page.after is not None:
            place = self.ask(f"Z{turned}RANK", key, page.after)
            if place is None:
                raise NoEntry
            first = place + 1
        return self._batches(self.ask(f"Z{turned}RANGE", key, first, first + page.limit))

    @asking
    def unfinished(self) -> list[BatchRecord]:
        found = self._batches(list(self.ask("SMEMBERS", f"{KEYS}unfinished")))
        return sorted((one for one in found if one.unfinished), key=lambda one: one.created_at)

    @asking
    def latest(self, count: int) -> list[BatchRecord]:
        return self._batches(self.ask("ZREVRANGE", f"{KEYS}batches", 0, count - 1))

    def _batches(self, names: list[bytes]) -> list[BatchRecord]:
        found: list[BatchRecord] = []
        for some in grouped(names, KEYS_AT_ONCE):
            asked = [("HMGET", _batch(name.decode()), *SHOWN) for name in some]
            found += [one for fields in self.each(asked) if (one := _record(fields)) is not None]
        return found

    @asking
    def drop_batches(self, before: int) -> None:
        self._drop(self.ask("ZRANGEBYSCORE", f"{KEYS}batches", "-inf", f"({before * 1_000_000}"))

    @asking
    def drop_ended(self, owner: str, most: int) -> None:
        self._drop(self.ask("ZREVRANGE", f"{KEYS}batches:{owner}", most, -1))

    def _drop(self, names: list[bytes]) -> None:
        """Forget those of these batches that have ended."""
        for record in self._batches(names):
            if not record.unfinished:
                commands = [
                    ("DEL", _batch(record.id)),
                    ("ZREM", f"{KEYS}batches", record.id),
                    ("ZREM", f"{KEYS}batches:{record.owner}", record.id),
                ]
                self.each(commands, together=True)

    @asking
    def move(self, batch: str, before: Sequence[Status], status: Status, now: int, **changes: Any) -> BatchRecord:
        record = _found(self.batch(batch)).moved(status, now, **changes)
        ended = "0" if record.unfinished else "1"
        wanted = status, msgspec.json.encode(record), record.total, ended
        return _found(_record(self.decide("move", batch, *wanted, *before)))

    # -- lines ----------------------------------------------------------------------------------------------------

    def index(self, record: BatchRecord, line_most: int, kept_most: int, now: int) -> Iterator[BatchRecord]:
        yield self._validate(record, line_most, kept_most, now)

    @asking
    def _validate(self, record: BatchRecord, line_most: int, kept_most: int, now: int) -> BatchRecord:
        with suppress(LeadLost):
            self._lead(record.id)
            self._led("restart", record.id)
            file = self.file(record.input_file_id)
            total = 0
            models: tuple[str, ...] = ()
            error: dict[str, Any] | None = EMPTY_FILE
            try:
                if file is not None:
                    total, models, too = self._index(record, file, line_most, kept_most)
                    error = too if total else EMPTY_FILE
            except FileLost:
                error = LOST
            if error is not None:
                self.move(record.id, ("validating",), "failed", now, errors=[error])
            else:
                self.move(record.id, ("validating",), "in_progress", now, total=total, models=models)
        return _found(self.batch(record.id))

    def _index(
        self, record: BatchRecord, file: FileRecord, line_most: int, kept_most: int
    ) -> tuple[int, tuple[str, ...], dict[str, Any] | None]:
        """Returns how many lines there are, the models that they name, and the error where that is too much."""
        total = 0
        models: tuple[str, ...] = ()
        content = io.BufferedReader(ChunkReader(self, file), CHUNK)
        for count, some in enumerate(in_groups(read_lines(content, record.endpoint, line_most), LINES_AT_ONCE)):
            total += len(some)
            kept_now = 0 if count % GROUPS_AT_ONCE else self.usage(record.owner).bytes
            if (error := too_much(total, kept_now, kept_most)) is not None:
                return total, models, error
            failed = [(number, found) for number, _, _, found in some if isinstance(found, LineError)]
            kept = {number: (at, size, one) for number, at, size, one in some if isinstance(one, BatchLine)}
            for _, _, one in kept.values():
                models = with_model(models, one.model)
            rows = [
                (n, _digest(one), _encode((at, size, one.custom_id, one.model))) for n, (at, size, one) in kept.items()
            ]
            self.check_room(sum(len(line) + 256 for _, _, line in rows))
            if rows:
                twice = self._led("index", record.id, *(part for row in rows for part in row))
                failed += [(int(number), duplicate(kept[int(number)][2].custom_id)) for number in twice]
            self._fail(record.id, ((n, error.custom_id, error.code, error.message) for n, error in failed))
        return total, models, too_much(total, self.usage(record.owner).bytes, kept_most)

    def _fail(self, batch: str, lines: Iterator[tuple[int, str, str, str]]) -> None:
        """Give each of these (number, custom_id, code, message) its row of the error file."""
        rows = [(number, failed_row(batch, number, *what)) for number, *what in lines]
        if rows:
            self._led("fail", batch, *(part for row in rows for part in row))

    @asking
    def take(self, batch: str, after: int, most: int, running: Collection[int]) -> list[LineRecord]:
        more = 1
        taken: list[Any] = []
        while more and not taken:
            found = self.decide("take", batch, most, *running)
            if found is None:
                raise BatchGone
            more, *taken = found
        return [LineRecord(int(number), *_decode(line)) for number, line in zip(*[iter(taken)] * 2, strict=True)]

    @asking
    def add_result(self, batch: str, number: int, row: bytes, *, ok: bool | None) -> BatchRecord:
        self.check_room(len(row))
        return _found(_record(self.decide("commit", batch, number, KINDS[ok][1], row)))

    @asking
    def renew(self, batches: Collection[str]) -> None:
        self.decide("renew", *batches)

    @asking
    def release(self, batch: str) -> None:
        self.decide("release", batch)

    # -- the end --------------------------------------------------------------------------------------------------

    def finalize(self, record: BatchRecord, now: int) -> Iterator[BatchRecord]:
        yield self._write_files(record, now)

    @asking
    def _write_files(self, record: BatchRecord, now: int) -> BatchRecord:
        with suppress(LeadLost):
            self._lead(record.id)
            if not record.total:  # cancelled before its lines were known
                self._led("restart", record.id)
            if record.ending == "expired":
                self._fail_rest(record)
            names: dict[str, str | None] = {}
            for file in self._write_outputs(record, now):
                self._lead(record.id)
                kind = "output" if file.id.startswith("file-output") else "error"
                names[f"{kind}_file_id"] = file.id if file.bytes else None
                if file.bytes:
                    self.add_file(file)
            self.move(record.id, ("finalizing",), record.ending, now, **names)
        return _found(self.batch(record.id))

    def _fail_rest(self, record: BatchRecord) -> None:
        for numbers in grouped(range(record.total), LINES_AT_ONCE):
            done = self.each([("HEXISTS", f"{KEYS}rows:{record.id}", n) for n in numbers])
            left = [number for number, is_done in zip(numbers, done, strict=True) if not is_done]
            if left:
                lines = self.ask("HMGET", f"{KEYS}lines:{record.id}", *left)
                names = [_decode(line)[2] if line is not None else "" for line in lines]
                self._fail(record.id, ((n, name, *EXPIRED) for n, name in zip(left, names, strict=True)))

    def _write_outputs(self, record: BatchRecord, now: int) -> list[FileRecord]:
        """Write the rows in the order of the input. The same bytes, however often that is repeated."""
        written = {ok: (file, ChunkWriter(file.id, self._writer(record.id))) for ok, file in output_files(record, now)}
        for numbers in grouped(range(record.total), ROWS_AT_ONCE):
            for row in self.ask("HMGET", f"{KEYS}rows:{record.id}", *numbers):
                if row is not None:
                    written[row[:1] == b"1"][1].write(row[1:])
        for _, writer in written.values():
            writer.finish()
        return [replace(file, bytes=writer.size) for file, writer in written.values()]

    def _writer(self, batch: str) -> Callable[[str, bytes], None]:
        def write(key: str, data: bytes) -> None:
            self.check_room(len(data))
            self._led("write", batch, key, data, UPLOAD_KEPT)

        return write

    def _lead(self, batch: str) -> None:
        if not self.decide("lead", batch):
            raise LeadLost

    def _led(self, operation: str, *args: Any) -> Any:
        """What only the gateway may do that leads."""
        answer = self.decide(operation, *args)
        if answer == 0:
            raise LeadLost
        return answer


def _batch(name: str) -> str:
    return f"{KEYS}batch:{name}"


def _digest(line: BatchLine) -> bytes:
    return blake2b(line.custom_id.encode(errors="surrogatepass"), digest_size=16).digest()


def _record(fields: list[bytes] | None) -> BatchRecord | None:
    """Of the fields `SHOWN` as Redis has them."""
    if fields is None or fields[0] is None:
        return None
    counts: dict[str, Any] = {name: int(count or 0) for name, count in zip(SHOWN[1:], fields[1:], strict=True)}
    return replace(_decode_record(fields[0]), **counts)


def _found(record: BatchRecord | None) -> BatchRecord:
    if record is None:
        raise BatchGone
    return record
