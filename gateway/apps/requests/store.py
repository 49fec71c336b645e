"""The last requests on disk: `requests.db` and, of those that were captured, `captured.db` (SQLite) in `server.data`.
Everything here blocks, but for `Recorder.put`: the event loop calls it in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gateway.accounting.queued_writer import QueuedWriter
from gateway.accounting.record import RequestLine, is_failure
from gateway.shortage import check_disk
from gateway.sqlite_file import SqliteFile
from gateway.supervision import Failures

NAME = "requests.db"
VERSION = 1
DAY = 86400.0
PRUNE_AFTER = 500  # rows that are written between two looks at what is too old or too many
FOUND_MOST = 1000  # requests of one answer
CAPTURED = "captured.db"
CAPTURED_KEPT = 24 * 3600.0  # seconds
CAPTURED_MOST = 256 * 1024 * 1024  # bytes; the oldest give way

_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
  at REAL NOT NULL, id TEXT NOT NULL, client TEXT NOT NULL, alias TEXT NOT NULL, backend TEXT NOT NULL,
  outcome TEXT NOT NULL, failed INTEGER NOT NULL, story BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS requests_ids ON requests (id);
"""
_COLUMNS = ("client", "alias", "backend", "outcome")


@dataclass(frozen=True, slots=True)
class Search:
    """Which requests. `id`: its beginning. `words`: the beginning of its id, or a part of a column. `equal`: values of
    columns. `failed`: by the gateway's or a backend's fault alone. `after`, `before`: numbers of requests."""

    id: str = ""
    words: str = ""
    equal: Mapping[str, str] = field(default_factory=dict)
    failed: bool = False
    after: int = 0
    before: int | None = None
    most: int = 100

    def sql(self) -> tuple[str, list[str | int]]:
        where: list[str] = ["rowid > ?"]
        values: list[str | int] = [self.after]
        for column in _COLUMNS:
            if (value := self.equal.get(column)) is not None:
                where.append(f"{column} = ?")
                values.append(value)
        if self.id:
            where.append("id >= ? AND id < ?")
            values += [self.id, self.id + "\U0010ffff"]
        if self.words:
            where.append(f"(id >= ? AND id < ? OR {' OR '.join(f'instr({name}, ?)' for name in _COLUMNS)})")
            values += [self.words, self.words + "\U0010ffff", *[self.words] * len(_COLUMNS)]
        if self.failed:
            where.append("failed")
        if self.before is not None:
            where.append("rowid < ?")
            values.append(self.before)
        order = "ASC" if self.after else "DESC"  # who follows misses none
        values.append(max(1, min(self.most, FOUND_MOST)))
        return f"SELECT rowid, story FROM requests WHERE {' AND '.join(where)} ORDER BY rowid {order} LIMIT ?", values


class RequestStore:
    """Used by one thread at a time. `keep`: requests, `days`: for so long. Raises sqlite3.Error, OSError."""

    def __init__(self, folder: Path, keep: int, days: int) -> None:
        self.path = folder / NAME
        self._keep, self._days = keep, days
        self._unpruned = PRUNE_AFTER  # the first write looks at what an earlier run has left
        self._file = SqliteFile(self.path, _SCHEMA, VERSION, private=True)

    def close(self) -> None:
        self._file.close()

    def write(self, rows: Iterable[tuple[Any, ...]], now: float) -> None:
        """Write all rows or none; what is too old or too many gives way."""
        self._file.close_if_replaced()
        with self._file.transaction() as db:
            self._unpruned += db.executemany("INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows).rowcount
            if self._unpruned >= min(PRUNE_AFTER, self._keep):
                self._unpruned = 0
                last = "(SELECT max(rowid) FROM requests) - ?"
                db.execute(f"DELETE FROM requests WHERE rowid <= {last}", (self._keep,))
                db.execute("DELETE FROM requests WHERE at < ?", (now - self._days * DAY,))

    def find(self, search: Search) -> list[dict[str, Any]]:
        """The newest first, each with its `number`; with `after` the oldest first."""
        with closing(self._file.open().execute(*search.sql())) as found:
            return [{"number": number, **msgspec.json.decode(story)} for number, story in found]


# -- captured bodies --------------------------------------------------------------------------------------------------

_CAPTURED_SCHEMA = """
CREATE TABLE IF NOT EXISTS captured (
  id TEXT NOT NULL, at REAL NOT NULL, client TEXT NOT NULL, endpoint TEXT NOT NULL, local_only INTEGER NOT NULL,
  whole INTEGER NOT NULL, request BLOB NOT NULL, answer BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS captured_ids ON captured (id);
"""
_SIZES = "SELECT rowid, sum(length(request) + length(answer)) OVER (ORDER BY rowid DESC) AS size FROM captured"


@dataclass(frozen=True, slots=True)
class CapturedRequest:
    """A request and its answer as the client sent and got them. `whole`: nothing of the request was cut."""

    id: str
    at: float
    client: str
    endpoint: str
    local_only: bool
    whole: bool
    request: bytes
    answer: bytes


class CapturedStore:
    """For any thread. The file is made with the first request. Raises sqlite3.Error, OSError."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / CAPTURED
        self._using = threading.Lock()
        overwrite = "PRAGMA secure_delete = ON"  # what is deleted
        self._file = SqliteFile(
            self.path, _CAPTURED_SCHEMA, VERSION, private=True, prepare=lambda db: db.execute(overwrite)
        )

    def add(self, one: CapturedRequest) -> None:
        check_disk(self.path.parent, 2 * (len(one.request) + len(one.answer)))
        with self._using, self._file.transaction() as db:
            db.execute("INSERT INTO captured VALUES (?, ?, ?, ?, ?, ?, ?, ?)", astuple(one))
            db.execute("DELETE FROM captured WHERE at < ?", (one.at - CAPTURED_KEPT,))
            db.execute(
                f"DELETE FROM captured WHERE rowid IN (SELECT rowid FROM ({_SIZES}) WHERE size > {CAPTURED_MOST})"
            )

    def drop_old(self, now: float) -> None:
        if self.path.exists():
            with self._using, self._file.transaction() as db:
                db.execute("DELETE FROM captured WHERE at < ?", (now - CAPTURED_KEPT,))

    def get(self, id: str, now: float) -> CapturedRequest | None:
        """The last one of this id; None = none is kept."""
        if not self.path.exists():
            return None
        with self._using:
            asked = "SELECT * FROM captured WHERE id = ? AND at > ? ORDER BY rowid DESC LIMIT 1"
            row = self._file.open().execute(asked, (id, now - CAPTURED_KEPT)).fetchone()
        if row is None:
            return None
        id, at, client, endpoint, local_only, whole, request, answer = row
        return CapturedRequest(id, at, client, endpoint, bool(local_only), bool(whole), bytes(request), bytes(answer))

    def close(self) -> None:
        with self._using:
            self._file.close()


# -- off the request path ---------------------------------------------------------------------------------------------


REASON_MOST = 500  # characters of a reason or message

_encode = msgspec.json.Encoder().encode


class Recorder(QueuedWriter[RequestLine]):
    """In a long burst the oldest that wait are dropped, so that requests have the CPU."""

    part, file = "requests", "the store of requests"
    flush = 1.0
    kept = 10_000
    at_once = 1_000

    def __init__(self, store: RequestStore, failures: Failures) -> None:
        super().__init__(store.path, failures)
        self._store = store

    def store(self, records: Sequence[RequestLine]) -> None:
        self._store.write(map(_row, records), time.time())

    def close_file(self) -> None:
        self._store.close()

    def find(self, search: Search) -> list[dict[str, Any]]:
        """With those that have just ended. Blocks. Raises sqlite3.Error, OSError."""
        with self._using:
            self.write(self.kept)
            return self._store.find(search)


def past_request(line: RequestLine) -> dict[str, Any]:
    """The fields of the log's line (docs/logs.md), and why: `left` has the reason of each failed attempt, `skipped`
    that of each backend that could not serve, `error` is the message that the client got. `at`: Unix seconds of its
    end. `usd`: None where the cost is not known. What has nothing to say is left out."""
    past = {"at": round(line.at, 3), **line.shown()}
    past |= {} if line.usd == 0.0 else {"usd": None if line.usd is None else round(line.usd, 6)}
    further = {
        "mended": sorted(line.mended),
        "left_out": line.left_out,
        "left": [{"backend": one.backend, "kind": one.kind, "reason": one.reason[:REASON_MOST]} for one in line.left],
        "skipped": [{"backend": name, "reason": reason[:REASON_MOST]} for name, reason in line.skipped],
        "translated": line.translated,
        "local_only": line.local_only,
        "error": line.error[:REASON_MOST],
        "failed": is_failure(line.outcome),
    }
    return past | {name: value for name, value in further.items() if value}


def _row(line: RequestLine) -> tuple[Any, ...]:
    """The row of the table (store.py)."""
    past = past_request(line)
    columns = (past[name] for name in ("at", "id", "client", "alias", "backend", "outcome"))
    return *columns, past.get("failed", False), _encode(past)
