"""Files and batches on disk: `batches.db` (SQLite) and the folder `files/` in `server.data`. Everything here blocks:
the event loop calls it in a thread.

A line that has a row in `results` is done and is never run again: the row is committed before the next line is taken
in its place. `kill -9` loses only the lines that were under way, which then run again.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gateway.batches.lines import BatchLine, LineError, failed_row, read_line
from gateway.batches.records import STAMPS, UNFINISHED, BatchRecord, FileRecord, LineRecord, Status

NAME = "batches.db"
FILES = "files"
BUSY = 5.0  # seconds to wait for a transaction of another process
AT_A_TIME = 1000  # lines that are written in one transaction
OUTPUT_DAYS = 30  # days until the files that a batch wrote expire
DAY = 86400

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
PRAGMA user_version = 1;
"""


class Usage(NamedTuple):
    """What one owner keeps."""

    files: int
    bytes: int
    unfinished: int


class BatchStore:
    """Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FILES
        self._path = folder / NAME
        self._base: sqlite3.Connection | None = None

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        os.chmod(self.folder, 0o700)
        base = sqlite3.connect(self._path, timeout=BUSY, isolation_level=None, check_same_thread=False)
        os.chmod(self._path, 0o600)
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = NORMAL")
        base.executescript(_SCHEMA)
        self._base = base
        self._drop_strays()

    def close(self) -> None:
        if self._base is not None:
            self._base.close()
            self._base = None

    @property
    def _db(self) -> sqlite3.Connection:
        assert self._base is not None
        return self._base

    # -- files ----------------------------------------------------------------------------------------------------

    def path_of(self, name: str) -> Path:
        return self.folder / name

    def free_bytes(self) -> int:
        """Free bytes of the disk."""
        return shutil.disk_usage(self.folder).free

    def add_file(self, record: FileRecord) -> None:
        """Its content is at `path_of` already."""
        row = (record.id, record.owner, record.purpose, record.filename, record.bytes, record.created_at)
        self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, record.expires_at))

    def file(self, name: str) -> FileRecord | None:
        row = self._db.execute("SELECT * FROM files WHERE id = ?", (name,)).fetchone()
        return FileRecord(*row) if row is not None else None

    def files(self, owner: str) -> list[FileRecord]:
        """The newest first."""
        rows = self._db.execute("SELECT * FROM files WHERE owner = ? ORDER BY created_at DESC, rowid DESC", (owner,))
        return [FileRecord(*row) for row in rows]

    def drop_file(self, name: str) -> None:
        self._db.execute("DELETE FROM files WHERE id = ?", (name,))
        with suppress(FileNotFoundError):
            self.path_of(name).unlink()

    def expired_files(self, now: int) -> list[str]:
        """Those of unfinished batches are kept."""
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
        """Contents without a row are left from uploads and outputs that were cut off."""
        known = {name for (name,) in self._db.execute("SELECT id FROM files")}
        for path in self.folder.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)

    # -- batches --------------------------------------------------------------------------------------------------

    def save(self, record: BatchRecord) -> None:
        row = (record.id, record.owner, record.status, record.created_at, msgspec.json.encode(record))
        self._db.execute("INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?)", row)

    def batch(self, name: str) -> BatchRecord | None:
        row = self._db.execute("SELECT record FROM batches WHERE id = ?", (name,)).fetchone()
        return _record(row) if row is not None else None

    def batches(self, owner: str) -> list[BatchRecord]:
        """The newest first."""
        asked = "SELECT record FROM batches WHERE owner = ? ORDER BY created_at DESC, rowid DESC"
        return [_record(row) for row in self._db.execute(asked, (owner,))]

    def unfinished(self) -> list[BatchRecord]:
        """Of all owners, the oldest first."""
        marks = ",".join("?" * len(UNFINISHED))
        asked = f"SELECT record FROM batches WHERE status IN ({marks}) ORDER BY created_at, rowid"
        return [_record(row) for row in self._db.execute(asked, UNFINISHED)]

    def latest(self, count: int) -> list[BatchRecord]:
        """Of all owners, the newest first."""
        asked = "SELECT record FROM batches ORDER BY created_at DESC, rowid DESC LIMIT ?"
        return [_record(row) for row in self._db.execute(asked, (count,))]

    def drop_batches(self, before: int) -> None:
        """Forget the batches that were created before this time and have ended."""
        marks = ",".join("?" * len(UNFINISHED))
        self._db.execute(f"DELETE FROM batches WHERE created_at < ? AND status NOT IN ({marks})", (before, *UNFINISHED))

    # -- lines ----------------------------------------------------------------------------------------------------

    def index(self, record: BatchRecord, line_most: int, now: int) -> BatchRecord:
        """Find the lines of the input of a batch that is being validated. Lines that cannot be run get their row of
        the error file at once. May be repeated after an interruption. Returns the batch as it is then."""
        self._forget_lines(record.id)
        total = failed = 0
        for some in _grouped(self._read_lines(record, line_most)):
            self._db.execute("BEGIN")
            for number, at, size, found in some:
                total += 1
                error = found if isinstance(found, LineError) else self._add_line(record.id, number, at, size, found)
                if error is not None:
                    failed += 1
                    row = failed_row(record.id, number, error.custom_id, error.code, error.message)
                    self._db.execute("INSERT INTO results VALUES (?, ?, 0, ?)", (record.id, number, row))
            self._db.execute("COMMIT")
        if not total:
            reason = {"code": "empty_file", "message": "The input file has no lines.", "param": None, "line": None}
            return self.move(record.id, "failed", now, errors=[reason])
        return self.move(record.id, "in_progress", now, total=total, failed=failed)

    def _add_line(self, batch: str, number: int, at: int, size: int, line: BatchLine) -> LineError | None:
        row = (batch, number, at, size, line.custom_id, line.model)
        if self._db.execute("INSERT OR IGNORE INTO lines VALUES (?, ?, ?, ?, ?, ?)", row).rowcount:
            return None
        message = f"`custom_id` '{line.custom_id}' is the one of an earlier line."
        return LineError("duplicate_custom_id", message, line.custom_id)

    def _read_lines(self, record: BatchRecord, most: int) -> Iterator[tuple[int, int, int, BatchLine | LineError]]:
        at = number = 0
        with self.path_of(record.input_file_id).open("rb") as file:
            while line := file.readline(most + 1):
                size = len(line)
                found: BatchLine | LineError
                if size > most:
                    found = LineError("line_too_large", f"This line is larger than {most} bytes (`server.max_body`).")
                    while (rest := file.readline(most)) and not rest.endswith(b"\n"):
                        size += len(rest)
                    size += len(rest)
                elif not line.strip():
                    at += size
                    continue
                else:
                    try:
                        found = read_line(line, record.endpoint)
                    except LineError as wrong:
                        found = wrong
                yield number, at, size, found
                at, number = at + size, number + 1

    def pending(self, batch: str, after: int, most: int) -> list[LineRecord]:
        """At most so many lines without a result, with a higher number than `after`."""
        asked = (
            "SELECT number, at, size, custom_id, model FROM lines WHERE batch = ? AND number > ? AND NOT EXISTS "
            "(SELECT 1 FROM results WHERE results.batch = lines.batch AND results.number = lines.number) "
            "ORDER BY number LIMIT ?"
        )
        return [LineRecord(*row) for row in self._db.execute(asked, (batch, after, most))]

    def read(self, record: BatchRecord, line: LineRecord) -> bytes:
        with self.path_of(record.input_file_id).open("rb") as file:
            file.seek(line.at)
            return file.read(line.size)

    def add_result(self, batch: str, number: int, row: bytes, *, ok: bool) -> BatchRecord:
        """Commit the result of a line. Returns the batch with its counts."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            result = (batch, number, ok, row)
            new = self._db.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", result).rowcount
            record = self.batch(batch)
            assert record is not None
            if new:
                record = replace(record, completed=record.completed + ok, failed=record.failed + (not ok))
                self.save(record)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        return record

    # -- the end --------------------------------------------------------------------------------------------------

    def move(self, batch: str, status: Status, now: int, **changes: Any) -> BatchRecord:
        """The batch with another status and these changes, saved."""
        record = self.batch(batch)
        assert record is not None
        stamp = STAMPS.get(status)
        stamps = record.stamps if stamp is None else {**record.stamps, stamp: now}
        record = replace(record, status=status, stamps=stamps, **changes)
        self.save(record)
        return record

    def finalize(self, record: BatchRecord, now: int) -> BatchRecord:
        """Write the output and error files, and end the batch with its `ending`. May be repeated."""
        if record.ending == "expired":
            self._fail_rest(record, "batch_expired", "The batch expired before this line was run.")
        files: dict[str, str | None] = {}
        for key, ok in (("output", 1), ("error", 0)):
            name = f"file-{key}-{record.id.removeprefix('batch_')}"
            size = self._write_rows(record.id, ok, self.path_of(name))
            files[f"{key}_file_id"] = name if size else None
            if size:
                kept_until = now + OUTPUT_DAYS * DAY
                purpose, shown = "batch_output", f"{record.id}_{key}.jsonl"
                self.add_file(FileRecord(name, record.owner, purpose, shown, size, now, kept_until))
            else:
                self.drop_file(name)
        failed = self._db.execute("SELECT count(*) FROM results WHERE batch = ? AND ok = 0", (record.id,)).fetchone()[0]
        record = self.move(record.id, record.ending, now, failed=failed, **files)
        self._forget_lines(record.id)
        return record

    def _fail_rest(self, record: BatchRecord, code: str, message: str) -> None:
        after = -1
        while some := self.pending(record.id, after, AT_A_TIME):
            self._db.execute("BEGIN")
            for line in some:
                row = failed_row(record.id, line.number, line.custom_id, code, message)
                self._db.execute("INSERT OR IGNORE INTO results VALUES (?, ?, 0, ?)", (record.id, line.number, row))
                after = line.number
            self._db.execute("COMMIT")

    def _write_rows(self, batch: str, ok: int, path: Path) -> int:
        """Write the rows in the order of the input. Returns the bytes."""
        rows = self._db.execute("SELECT row FROM results WHERE batch = ? AND ok = ? ORDER BY number", (batch, ok))
        part = path.with_name(path.name + ".part")
        with open(part, "wb", opener=private_opener) as file:
            for (row,) in rows:
                file.write(row)
            size = file.tell()
        os.replace(part, path)
        return size

    def _forget_lines(self, batch: str) -> None:
        self._db.execute("BEGIN")
        self._db.execute("DELETE FROM lines WHERE batch = ?", (batch,))
        self._db.execute("DELETE FROM results WHERE batch = ?", (batch,))
        self._db.execute("COMMIT")


def private_opener(path: str, flags: int) -> int:
    """For `open`: a file that only its owner may read."""
    return os.open(path, flags, 0o600)


_decode_record = msgspec.json.Decoder(BatchRecord).decode


def _record(row: tuple[bytes]) -> BatchRecord:
    return _decode_record(row[0])


def _grouped(lines: Iterator[Any]) -> Iterator[list[Any]]:
    while some := list(itertools.islice(lines, AT_A_TIME)):
        yield some
