"""Captured bodies on disk: `captured.db` (SQLite) in `server.data`, for its owner alone. Everything here blocks."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import astuple
from pathlib import Path

from gateway.apps.requests.capture import CapturedRequest
from gateway.shortage import check_disk
from gateway.sqlite_file import SqliteFile

NAME = "captured.db"
VERSION = 1
KEPT = 24 * 3600.0  # seconds
KEPT_MOST = 256 * 1024 * 1024  # bytes; the oldest give way

_SCHEMA = """
CREATE TABLE IF NOT EXISTS captured (
  id TEXT NOT NULL, at REAL NOT NULL, client TEXT NOT NULL, endpoint TEXT NOT NULL, local_only INTEGER NOT NULL,
  whole INTEGER NOT NULL, request BLOB NOT NULL, answer BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS captured_ids ON captured (id);
"""
_SIZES = "SELECT rowid, sum(length(request) + length(answer)) OVER (ORDER BY rowid DESC) AS size FROM captured"


class CapturedStore:
    """For any thread. The file is made with the first request. Raises sqlite3.Error, OSError."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._using = threading.Lock()
        self._file = SqliteFile(self.path, _SCHEMA, VERSION, private=True, prepare=_overwrite_deleted)

    def add(self, one: CapturedRequest) -> None:
        check_disk(self.path.parent, 2 * (len(one.request) + len(one.answer)))
        with self._using, self._file.transaction() as db:
            db.execute("INSERT INTO captured VALUES (?, ?, ?, ?, ?, ?, ?, ?)", astuple(one))
            db.execute("DELETE FROM captured WHERE at < ?", (one.at - KEPT,))
            db.execute(f"DELETE FROM captured WHERE rowid IN (SELECT rowid FROM ({_SIZES}) WHERE size > {KEPT_MOST})")

    def drop_old(self, now: float) -> None:
        if self.path.exists():
            with self._using, self._file.transaction() as db:
                db.execute("DELETE FROM captured WHERE at < ?", (now - KEPT,))

    def get(self, id: str, now: float) -> CapturedRequest | None:
        """The last one of this id; None = none is kept."""
        if not self.path.exists():
            return None
        with self._using:
            asked = "SELECT * FROM captured WHERE id = ? AND at > ? ORDER BY rowid DESC LIMIT 1"
            row = self._file.open().execute(asked, (id, now - KEPT)).fetchone()
        if row is None:
            return None
        id, at, client, endpoint, local_only, whole, request, answer = row
        return CapturedRequest(id, at, client, endpoint, bool(local_only), bool(whole), bytes(request), bytes(answer))

    def close(self) -> None:
        with self._using:
            self._file.close()


def _overwrite_deleted(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA secure_delete = ON")
