"""The store of a gateway that is alone: `batches.db` (SQLite) and the folder `files/` in `server.data`.

A line that has a row in `results` is done and is never run again: the row is committed before the next line is taken
in its place. `kill -9` loses only the lines that were under way, which then run again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from gateway.apps.batches.lines import BatchLine, LineError, ReadLine, failed_row, in_groups, read_lines
from gateway.apps.batches.records import UNFINISHED, BatchRecord, FileRecord, LineRecord, Status
from gateway.apps.batches.store import (
    EMPTY_FILE,
    EXPIRED,
    LOST,
    BatchStore,
    FileWriter,
    StoreFull,
    Usage,
    duplicate,
    output_files,
    with_model,
)
from gateway.domain.privacy import NO_MARKS, Privacy
from gateway.sqlite_file import SqliteFile

NAME = "batches.db"
FILES = "files"
AT_A_TIME = 1000  # lines that are written in one transaction
ROWS_AT_A_TIME = 32  # answers that are read while the files are written
FREE_LEAST = 256 * 1024 * 1024  # bytes of the disk that stay free

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
# Beside the files, in files from before too: a gateway that does not know them goes on with the rest.
_MARKS = "CREATE TABLE IF NOT EXISTS file_marks (id TEXT PRIMARY KEY, privacy BLOB NOT NULL)"
_FILES = "SELECT files.*, file_marks.privacy FROM files LEFT JOIN file_marks USING (id)"


def _add_marks(connection: sqlite3.Connection) -> None:
    connection.execute(_MARKS)


class SqliteBatchStore(BatchStore):
    """Used by one thread at a time."""

    threads = 1
    shared = False

    def __init__(self, folder: Path) -> None:
        self.where = f"{NAME} in its `server.data`"
        self.folder = folder / FILES
        self._file = SqliteFile(folder / NAME, _SCHEMA, VERSION, private=True, prepare=_add_marks)

    @property
    def there(self) -> bool:
        return self._file.path.exists()

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        os.chmod(self.folder, 0o700)
        self._drop_strays()

    def close(self) -> None:
        self._file.close()

    @property
    def _db(self) -> sqlite3.Connection:
        return self._file.open()

    # -- files ----------------------------------------------------------------------------------------------------

    def path_of(self, name: str) -> Path:
        return self.folder / name

    def new_file(self, name: str) -> FileWriter:
        return _DiskWriter(self.path_of(name))

    def read_file(self, name: str, at: int, size: int) -> bytes:
        with suppress(FileNotFoundError), self.path_of(name).open("rb") as file:
            file.seek(at)
            return file.read(size)
        return b""

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
        self._db.execute("DELETE FROM file_marks WHERE id = ?", (name,))
        with suppress(FileNotFoundError):
            self.path_of(name).unlink()

    def expired_files(self, now: int) -> list[str]:
        used = {record.input_file_id for record in self.unfinished()}
        rows = self._db.execute("SELECT id FROM files WHERE expires_at <= ?", (now,))
        return [name for (name,) in rows if name not in used]

    def usage(self, owner: str) -> Usage:
        count = self._db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM files WHERE owner = ?", (owner,))
        files, size = count.fetchone()
        marks = ",".join("?" * len(UNFINISHED))
        asked = f"SELECT count(*) FROM batches WHERE owner = ? AND status IN ({marks})"
        return Usage(files, size, self._db.execute(asked, (owner, *UNFINISHED)).fetchone()[0])

    def _drop_strays(self) -> None:
        """Contents without a row are left from uploads and outputs that were cut off, and lines of a batch that has
        ended from a stop just then."""
        known = {name for (name,) in self._db.execute("SELECT id FROM files")}
        for path in self.folder.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)
        with_lines = self._db.execute("SELECT DISTINCT batch FROM lines UNION SELECT DISTINCT batch FROM results")
        for ended in {name for (name,) in with_lines} - {record.id for record in self.unfinished()}:
            for _ in self._forget_lines(ended):
                pass

    # -- batches --------------------------------------------------------------------------------------------------

    def save(self, record: BatchRecord) -> None:
        row = (record.id, record.owner, record.status, record.created_at, msgspec.json.encode(record))
        self._db.execute("INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?)", row)

    def batch(self, name: str) -> BatchRecord | None:
        row = self._db.execute("SELECT record FROM batches WHERE id = ?", (name,)).fetchone()
        return _record(row) if row is not None else None

    def batches(self, owner: str) -> list[BatchRecord]:
        asked = "SELECT record FROM batches WHERE owner = ? ORDER BY created_at DESC, rowid DESC"
        return [_record(row) for row in self._db.execute(asked, (owner,))]

    def unfinished(self) -> list[BatchRecord]:
        marks = ",".join("?" * len(UNFINISHED))
        asked = f"SELECT record FROM batches WHERE status IN ({marks}) ORDER BY created_at, rowid"
        return [_record(row) for row in self._db.execute(asked, UNFINISHED)]

    def latest(self, count: int) -> list[BatchRecord]:
        asked = "SELECT record FROM batches ORDER BY created_at DESC, rowid DESC LIMIT ?"
        return [_record(row) for row in self._db.execute(asked, (count,))]

    def drop_batches(self, before: int) -> None:
        marks = ",".join("?" * len(UNFINISHED))
        self._db.execute(f"DELETE FROM batches WHERE created_at < ? AND status NOT IN ({marks})", (before, *UNFINISHED))

    # -- lines ----------------------------------------------------------------------------------------------------

    def index(self, record: BatchRecord, line_most: int, now: int) -> BatchRecord:
        return _last(self.indexing(record, line_most, now))

    def indexing(self, record: BatchRecord, line_most: int, now: int) -> Iterator[BatchRecord | None]:
        yield from self._forget_lines(record.id)
        total = failed = 0
        models: tuple[str, ...] = ()
        path = self.path_of(record.input_file_id)
        if not path.exists():  # deleted meanwhile, or by someone else
            yield self.move(record.id, ("validating",), "failed", now, errors=[LOST])
            return
        with path.open("rb") as file:
            for some in in_groups(read_lines(file, record.endpoint, line_most), AT_A_TIME):
                total += len(some)
                with self._file.transaction():
                    failed += self._index_some(record.id, some)
                for _, _, _, found in some:
                    if isinstance(found, BatchLine):
                        models = with_model(models, found.model)
                yield None
                if (known := self.batch(record.id)) is None or known.status != "validating":  # cancelled
                    yield known
                    return
        if not total:
            yield self.move(record.id, ("validating",), "failed", now, errors=[EMPTY_FILE])
        else:
            yield self.move(record.id, ("validating",), "in_progress", now, total=total, failed=failed, models=models)

    def _index_some(self, batch: str, some: list[ReadLine]) -> int:
        """Returns how many of them cannot be run."""
        failed = 0
        for number, at, size, found in some:
            error = found if isinstance(found, LineError) else self._add_line(batch, number, at, size, found)
            if error is not None:
                failed += 1
                row = failed_row(batch, number, error.custom_id, error.code, error.message)
                self._db.execute("INSERT INTO results VALUES (?, ?, 0, ?)", (batch, number, row))
        return failed

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

    def add_result(self, batch: str, number: int, row: bytes, *, ok: bool) -> BatchRecord:
        with self._file.transaction():
            result = (batch, number, ok, row)
            new = self._db.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", result).rowcount
            record = self.batch(batch)
            assert record is not None
            if new:
                record = replace(record, completed=record.completed + ok, failed=record.failed + (not ok))
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

    def renew(self, batches: Collection[str]) -> None:
        """No other gateway is there."""

    def release(self, batch: str) -> None:
        """The same."""

    def finalize(self, record: BatchRecord, now: int) -> BatchRecord:
        return _last(self.finalizing(record, now))

    def finalizing(self, record: BatchRecord, now: int) -> Iterator[BatchRecord | None]:
        known = self.batch(record.id)
        if known is not None and not known.unfinished:  # its files are written, and some of the rows gone
            yield from self._forget_lines(record.id)
            yield known
            return
        if not record.total:  # cancelled before its lines were known
            yield from self._forget_lines(record.id)
        if record.ending == "expired":
            yield from self._fail_rest(record, *EXPIRED)
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
            with self._file.transaction():
                for line in some:
                    row = failed_row(record.id, line.number, line.custom_id, code, message)
                    self._db.execute("INSERT OR IGNORE INTO results VALUES (?, ?, 0, ?)", (record.id, line.number, row))
                    after = line.number
            yield None

    def _write_rows(self, batch: str, ok: int, path: Path) -> Iterator[None]:
        """Write the rows in the order of the input."""
        asked = "SELECT number, row FROM results WHERE batch = ? AND ok = ? AND number > ? ORDER BY number LIMIT ?"
        part = path.with_name(path.name + ".part")
        after: int | None = -1
        with open(part, "wb", opener=private_opener) as file:
            while after is not None:
                rows = self._db.execute(asked, (batch, ok, after, ROWS_AT_A_TIME))
                after = None
                for after, row in rows:  # noqa: B007
                    file.write(row)
                yield None
        os.replace(part, path)

    def _forget_lines(self, batch: str) -> Iterator[None]:
        for table in ("lines", "results"):
            some = f"SELECT number FROM {table} WHERE batch = ? LIMIT {AT_A_TIME}"
            asked = f"DELETE FROM {table} WHERE batch = ? AND number IN ({some})"
            while self._db.execute(asked, (batch, batch)).rowcount:
                yield None


def _last(steps: Iterator[BatchRecord | None]) -> BatchRecord:
    *_, record = steps
    assert record is not None
    return record


class _DiskWriter:
    held = 0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        file = self._opened()
        if shutil.disk_usage(self._path.parent).free - len(data) < FREE_LEAST:
            raise StoreFull("The disk of the gateway's `server.data` is full.")
        file.write(data)

    def finish(self) -> None:
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        file.close()

    def drop(self) -> None:
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = open(self._path, "wb", opener=private_opener)  # noqa: SIM115
        return self._file


def private_opener(path: str, flags: int) -> int:
    """For `open`: a file that only its owner may read."""
    return os.open(path, flags, 0o600)


_decode_record = msgspec.json.Decoder(BatchRecord).decode
_decode_privacy = msgspec.json.Decoder(Privacy).decode


def _file_record(row: tuple[Any, ...]) -> FileRecord:
    *found, marks = row
    found.append(NO_MARKS if marks is None else _decode_privacy(marks))
    return FileRecord(*found)


def _record(row: tuple[bytes]) -> BatchRecord:
    return _decode_record(row[0])
