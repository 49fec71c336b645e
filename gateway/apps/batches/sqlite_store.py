"""The store of a gateway that is alone: `batches.db` (SQLite) and the folder `files/` in `server.data`.

A line that has a row in `results` is done and is never run again: the row is committed before the next line is taken
in its place. `kill -9` loses only the lines that were under way, which then run again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gateway.apps.batches.file_folder import DiskWriter, FileFolder
from gateway.apps.batches.lines import BatchLine, LineError, ReadLine, failed_row, in_groups, read_lines
from gateway.apps.batches.records import KINDS, UNFINISHED, BatchRecord, FileRecord, LineRecord, Status
from gateway.apps.batches.store import (
    EMPTY_FILE,
    EXPIRED,
    LINE_COST,
    LOST,
    BatchStore,
    FileWriter,
    NoEntry,
    Page,
    Usage,
    duplicate,
    output_files,
    too_much,
    with_model,
)
from gateway.domain.privacy import NO_MARKS, Privacy
from gateway.shortage import check_disk
from gateway.sqlite_file import SqliteFile

NAME = "batches.db"
FILES = "files"
AT_A_TIME = 1000  # lines that are written in one transaction
ROWS_AT_A_TIME = 32  # answers that are read while the files are written

VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, purpose TEXT NOT NULL, filename TEXT NOT NULL,
  bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER
);
CREATE TABLE IF NOT EXISTS batches (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, status TEXT NOT NULL, created_at INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS lines (
  batch TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL, size INTEGER NOT NULL,
  custom_id TEXT NOT NULL, model TEXT NOT NULL,
  PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS line_names ON lines (batch, custom_id);
CREATE TABLE IF NOT EXISTS results (
  batch TEXT NOT NULL, number INTEGER NOT NULL, ok INTEGER NOT NULL, row BLOB NOT NULL,
  PRIMARY KEY (batch, number)
);
"""
# What a store of an older gateway has not: indexes for the lists of one client, and marks of files beside the files, so
# that a gateway that does not know them goes on with the rest.
_ADDED = """
CREATE TABLE IF NOT EXISTS file_marks (id TEXT PRIMARY KEY, privacy BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS files_of ON files (owner, created_at);
CREATE INDEX IF NOT EXISTS batches_of ON batches (owner, created_at);
CREATE INDEX IF NOT EXISTS batches_in ON batches (status);
"""
_FILES = "SELECT files.*, file_marks.privacy FROM files LEFT JOIN file_marks USING (id)"


class SqliteBatchStore(BatchStore):
    """Used by one thread at a time."""

    threads = 1
    shared = False

    def __init__(self, folder: Path) -> None:
        self.where = f"{NAME} in its `server.data`"
        self.folder = folder / FILES
        self._files = FileFolder(self.folder)
        self._file = SqliteFile(
            folder / NAME, _SCHEMA, VERSION, private=True, prepare=lambda db: db.executescript(_ADDED)
        )

    @property
    def there(self) -> bool:
        return self._file.path.exists()

    def open(self) -> None:
        self._files.take(used_before=self.there)
        try:
            self._drop_strays()
        except BaseException:
            self._files.leave()
            raise

    def close(self) -> None:
        self._file.close()
        self._files.leave()

    @property
    def _db(self) -> sqlite3.Connection:
        return self._file.open()

    # -- files ----------------------------------------------------------------------------------------------------

    def path_of(self, name: str) -> Path:
        return self.folder / name

    def new_file(self, name: str) -> FileWriter:
        return DiskWriter(self.path_of(name))

    def read_file(self, name: str, at: int, size: int) -> bytes:
        return self._files.read(name, at, size)

    def add_file(self, record: FileRecord) -> None:
        row = (record.id, record.owner, record.purpose, record.filename, record.bytes, record.created_at)
        with self._file.transaction() as db:
            if record.privacy != NO_MARKS:
                marks = record.id, msgspec.json.encode(record.privacy)
                db.execute("INSERT OR REPLACE INTO file_marks VALUES (?, ?)", marks)
            db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, record.expires_at))

    def file(self, name: str) -> FileRecord | None:
        row = self._db.execute(f"{_FILES} WHERE id = ?", (name,)).fetchone()
        return _file_record(row) if row is not None else None

    def files(self, owner: str) -> list[FileRecord]:
        rows = self._db.execute(f"{_FILES} WHERE owner = ? ORDER BY created_at DESC, files.rowid DESC", (owner,))
        return [_file_record(row) for row in rows]

    def drop_file(self, name: str) -> None:
        self._db.execute("DELETE FROM files WHERE id = ?", (name,))
        self._files.drop(name)
        self._db.execute("DELETE FROM file_marks WHERE id = ?", (name,))

    def expired_files(self, now: int) -> list[str]:
        used = {record.input_file_id for record in self.unfinished()}
        rows = self._db.execute("SELECT id FROM files WHERE expires_at <= ?", (now,))
        return [name for (name,) in rows if name not in used]

    def usage(self, owner: str) -> Usage:
        count = self._db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM files WHERE owner = ?", (owner,))
        files, size = count.fetchone()
        batches = self._records("WHERE owner = ? AND status", owner)
        return Usage(files, size + sum(batch.stored for batch in batches), len(batches))

    def _drop_strays(self) -> None:
        """Contents without a row are left from uploads and outputs that were cut off, and lines of a batch that has
        ended from a stop just then."""
        self._files.drop_strays({name for (name,) in self._db.execute("SELECT id FROM files")})
        with_lines = self._db.execute("SELECT DISTINCT batch FROM lines UNION SELECT DISTINCT batch FROM results")
        for ended in {name for (name,) in with_lines} - {record.id for record in self.unfinished()}:
            for _ in self._forget_lines(ended):
                pass

    # -- batches --------------------------------------------------------------------------------------------------

    def save(self, record: BatchRecord) -> None:
        row = (record.id, record.owner, record.status, record.created_at, msgspec.json.encode(record))
        kept = "UPDATE SET status = excluded.status, record = excluded.record"  # its place in lists stays
        self._db.execute(f"INSERT INTO batches VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO {kept}", row)

    def batch(self, name: str) -> BatchRecord | None:
        row = self._db.execute("SELECT record FROM batches WHERE id = ?", (name,)).fetchone()
        return _record(row) if row is not None else None

    def batches(self, owner: str, page: Page) -> list[BatchRecord]:
        order, beyond = ("DESC", "<") if page.descending else ("ASC", ">")
        asked, args = "SELECT record FROM batches WHERE owner = ?", [owner]
        if page.after is not None:
            place = "SELECT created_at, rowid FROM batches WHERE owner = ? AND id = ?"
            found = self._db.execute(place, (owner, page.after)).fetchone()
            if found is None:
                raise NoEntry
            asked, args = f"{asked} AND (created_at, rowid) {beyond} (?, ?)", [owner, *found]
        asked += f" ORDER BY created_at {order}, rowid {order} LIMIT ?"
        return [_record(row) for row in self._db.execute(asked, (*args, page.limit + 1))]

    def unfinished(self) -> list[BatchRecord]:
        return self._records("WHERE status")

    def _records(self, where: str, *args: Any) -> list[BatchRecord]:
        """The unfinished batches `where`, the oldest first."""
        asked = f"SELECT record FROM batches {where} IN ({_UNFINISHED}) ORDER BY created_at, rowid"
        return [_record(row) for row in self._db.execute(asked, (*args, *UNFINISHED))]

    def latest(self, count: int) -> list[BatchRecord]:
        asked = "SELECT record FROM batches ORDER BY created_at DESC, rowid DESC LIMIT ?"
        return [_record(row) for row in self._db.execute(asked, (count,))]

    def drop_batches(self, before: int) -> None:
        ended = f"status NOT IN ({_UNFINISHED})"
        self._db.execute(f"DELETE FROM batches WHERE created_at < ? AND {ended}", (before, *UNFINISHED))

    def drop_ended(self, owner: str, most: int) -> None:
        ended = f"SELECT id FROM batches WHERE owner = ? AND status NOT IN ({_UNFINISHED})"
        more = f"{ended} ORDER BY created_at DESC, rowid DESC LIMIT -1 OFFSET ?"
        self._db.execute(f"DELETE FROM batches WHERE id IN ({more})", (owner, *UNFINISHED, most))

    # -- lines ----------------------------------------------------------------------------------------------------

    def index(self, record: BatchRecord, line_most: int, kept_most: int, now: int) -> Iterator[BatchRecord | None]:
        yield from self._forget_lines(record.id)
        record = replace(record, total=0, failed=0, models=(), stored=0)
        path = self.path_of(record.input_file_id)
        if not path.exists():  # deleted meanwhile, or by someone else
            yield self.move(record.id, ("validating",), "failed", now, errors=[LOST])
            return
        error: dict[str, Any] | None = None
        with path.open("rb") as file:
            for some in in_groups(read_lines(file, record.endpoint, line_most), AT_A_TIME):
                with self._file.transaction():
                    record = self._index_some(record, some)
                yield None
                if (known := self.batch(record.id)) is None or known.status != "validating":  # cancelled
                    yield known
                    return
                self.save(replace(known, stored=record.stored))
                error = too_much(record.total, self.usage(record.owner).bytes, kept_most)
                if error is not None:
                    yield from self._forget_lines(record.id)
                    break
        if not record.total:
            error = EMPTY_FILE
        if error is not None:
            yield self.move(record.id, ("validating",), "failed", now, errors=[error], stored=0)
        else:
            found = {name: getattr(record, name) for name in ("total", "failed", "models", "stored")}
            yield self.move(record.id, ("validating",), "in_progress", now, **found)

    def _index_some(self, record: BatchRecord, some: list[ReadLine]) -> BatchRecord:
        """The batch with these lines."""
        check_disk(self._file.path.parent, sum(min(size, LINE_COST) for _, _, size, _ in some))
        failed, stored, models = record.failed, record.stored, record.models
        for number, at, size, found in some:
            error = found if isinstance(found, LineError) else self._add_line(record.id, number, at, size, found)
            if isinstance(found, BatchLine):
                models = with_model(models, found.model)
                stored += LINE_COST + 2 * len(found.custom_id)
            if error is not None:
                failed += 1
                row = failed_row(record.id, number, error.custom_id, error.code, error.message)
                self._db.execute("INSERT INTO results VALUES (?, ?, 0, ?)", (record.id, number, row))
                stored += len(row)
        return replace(record, total=record.total + len(some), failed=failed, stored=stored, models=models)

    def _add_line(self, batch: str, number: int, at: int, size: int, line: BatchLine) -> LineError | None:
        row = (batch, number, at, size, line.custom_id, line.model)
        if self._db.execute("INSERT OR IGNORE INTO lines VALUES (?, ?, ?, ?, ?, ?)", row).rowcount:
            return None
        return duplicate(line.custom_id)

    def take(self, batch: str, after: int, most: int, running: Collection[int]) -> list[LineRecord]:
        asked = (
            "SELECT number, at, size, custom_id, model FROM lines WHERE batch = ? AND number > ? AND NOT EXISTS "
            "(SELECT 1 FROM results WHERE results.batch = lines.batch AND results.number = lines.number) "
            "ORDER BY number LIMIT ?"
        )
        return [LineRecord(*row) for row in self._db.execute(asked, (batch, after, most))]

    def add_result(self, batch: str, number: int, row: bytes, *, ok: bool | None) -> BatchRecord:
        check_disk(self._file.path.parent, 2 * len(row))  # it goes through SQLite's log of writes
        with self._file.transaction():
            kind, stored_as = KINDS[ok]
            result = (batch, number, stored_as, row)
            new = self._db.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", result).rowcount
            record = self.batch(batch)
            assert record is not None
            if new:
                stored = record.stored + len(row)
                record = replace(record, stored=stored, **{kind: getattr(record, kind) + 1})
                self.save(record)
        return record

    # -- the end --------------------------------------------------------------------------------------------------

    def move(self, batch: str, before: Sequence[Status], status: Status, now: int, **changes: Any) -> BatchRecord:
        record = self.batch(batch)
        assert record is not None
        if record.status in before:
            record = record.moved(status, now, **changes)
            self.save(record)
        return record

    def finalize(self, record: BatchRecord, now: int) -> Iterator[BatchRecord | None]:
        known = self.batch(record.id)
        if known is not None and not known.unfinished:  # its files are written, and some of the rows gone
            yield from self._forget_lines(record.id)
            yield known
            return
        if not record.total:  # cancelled before its lines were known
            yield from self._forget_lines(record.id)
        if record.ending == "expired":
            yield from self._fail_rest(record, *EXPIRED)
        check_disk(self._file.path.parent, record.stored)
        files: dict[str, str | None] = {}
        for ok, file in output_files(record, now):
            path = self.path_of(file.id)
            yield from self._write_rows(record.id, ok, path)
            size = path.stat().st_size
            files[f"{'output' if ok else 'error'}_file_id"] = file.id if size else None
            if size:
                self.add_file(replace(file, bytes=size))
            else:
                self.drop_file(file.id)
        failed = self._db.execute("SELECT count(*) FROM results WHERE batch = ? AND ok = 0", (record.id,)).fetchone()[0]
        record = self.move(record.id, ("finalizing",), record.ending, now, failed=failed, **files)
        yield from self._forget_lines(record.id)
        yield record

    def _fail_rest(self, record: BatchRecord, code: str, message: str) -> Iterator[None]:
        after = -1
        while some := self.take(record.id, after, AT_A_TIME, ()):
            check_disk(self._file.path.parent, len(some) * LINE_COST)
            with self._file.transaction():
                for line in some:
                    row = failed_row(record.id, line.number, line.custom_id, code, message)
                    self._db.execute("INSERT OR IGNORE INTO results VALUES (?, ?, 0, ?)", (record.id, line.number, row))
                    after = line.number
            yield None

    def _write_rows(self, batch: str, ok: int, path: Path) -> Iterator[None]:
        """Write the rows in the order of the input."""
        asked = (
            "SELECT number, row FROM results WHERE batch = ? AND (ok = 1) = ? AND number > ? ORDER BY number LIMIT ?"
        )
        part = path.with_name(path.name + ".part")
        after: int | None = -1
        file = DiskWriter(part)
        try:
            while after is not None:
                rows = self._db.execute(asked, (batch, ok, after, ROWS_AT_A_TIME))
                after = None
                for after, row in rows:  # noqa: B007
                    file.write(row)
                yield None
            file.finish()
        except BaseException:
            file.drop()
            raise
        os.replace(part, path)

    def _forget_lines(self, batch: str) -> Iterator[None]:
        for table in ("lines", "results"):
            some = f"SELECT number FROM {table} WHERE batch = ? LIMIT {AT_A_TIME}"
            asked = f"DELETE FROM {table} WHERE batch = ? AND number IN ({some})"
            while self._db.execute(asked, (batch, batch)).rowcount:
                yield None


_UNFINISHED = ",".join("?" * len(UNFINISHED))  # for `IN`
_decode_record = msgspec.json.Decoder(BatchRecord).decode
_decode_privacy = msgspec.json.Decoder(Privacy).decode


def _file_record(row: tuple[Any, ...]) -> FileRecord:
    *found, marks = row
    found.append(NO_MARKS if marks is None else _decode_privacy(marks))
    return FileRecord(*found)


def _record(row: tuple[bytes]) -> BatchRecord:
    return _decode_record(row[0])
