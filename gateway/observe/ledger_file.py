"""The usage ledger as a file: `usage.db`, SQLite. Everything here blocks; see ledger.py for who may wait.

`usage` has a line per request (`span` 0) and, of long ago, a line per hour (`span` 3600). `spent` has USD per UTC day:
after a restart budgets know what they knew before, without adding up a month of requests.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

NAME = "usage.db"
VERSION = 1
HOUR, DAY = 3600, 86400  # seconds
SINGLE_DAYS, SINGLE_MOST = 90, 2_000_000  # requests that are kept one by one
HOURS_DAYS = 3 * 365  # then even the hours go
BUSY = 5.0  # seconds to wait for another process' transaction
GROUPS = ("client", "alias", "backend")

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS usage (
  at REAL NOT NULL, span INTEGER NOT NULL,
  client TEXT NOT NULL, alias TEXT NOT NULL, backend TEXT NOT NULL, endpoint TEXT NOT NULL, outcome TEXT NOT NULL,
  requests INTEGER NOT NULL, seconds REAL NOT NULL, prompt INTEGER NOT NULL, completion INTEGER NOT NULL,
  cached INTEGER NOT NULL, reasoning INTEGER NOT NULL, usd REAL NOT NULL, unpriced INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS usage_at ON usage (span, at);
CREATE TABLE IF NOT EXISTS spent (
  day INTEGER NOT NULL, backend TEXT NOT NULL, client TEXT NOT NULL, usd REAL NOT NULL,
  PRIMARY KEY (day, backend, client)
) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""
_NAMES = "client, alias, backend, endpoint, outcome"
_SUMS = "requests, seconds, prompt, completion, cached, reasoning, usd, unpriced"
_SUMMED = ", ".join(f"sum({name})" for name in _SUMS.split(", "))


class Entry(NamedTuple):
    """One request that has ended, or (`requests` 0) an answer that was complete but not used. `at`: Unix seconds.
    `unpriced` 1 = what its tokens cost is unknown. In the order of the table's columns."""

    at: float
    client: str
    alias: str
    backend: str
    endpoint: str
    outcome: str
    requests: int
    seconds: float
    prompt: int
    completion: int
    cached: int
    reasoning: int
    usd: float
    unpriced: int


class Sums(NamedTuple):
    """What a group of requests comes to; `errors` are those that did not end well."""

    group: tuple[str, ...]
    requests: int
    errors: int
    seconds: float
    prompt: int
    completion: int
    cached: int
    reasoning: int
    usd: float
    unpriced: int


class LedgerFile:
    """The connection that writes; of one thread. Every method raises sqlite3.Error or OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def write(self, entries: Sequence[Entry]) -> None:
        """All of them or none."""
        with self._transaction() as connection:
            columns = f"at, span, {_NAMES}, {_SUMS}"
            marks = "?, 0, " + ", ".join("?" * (len(Entry._fields) - 1))
            connection.executemany(f"INSERT INTO usage ({columns}) VALUES ({marks})", entries)
            spent = [(int(e.at // DAY), e.backend, e.client, e.usd) for e in entries if e.usd > 0.0]
            connection.executemany(
                "INSERT INTO spent VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET usd = usd + excluded.usd", spent
            )

    def fold(self, now: float, most: int = SINGLE_MOST) -> int:
        """Make lines of hours of what is too old, or too much, to be kept one by one. Returns how many were folded."""
        with self._transaction() as connection:
            before = now - SINGLE_DAYS * DAY
            newest = connection.execute(
                "SELECT at FROM usage WHERE span = 0 ORDER BY at DESC LIMIT 1 OFFSET ?", (most,)
            ).fetchone()
            if newest is not None:
                before = max(before, newest[0] + 1e-6)
            connection.execute(
                f"INSERT INTO usage (at, span, {_NAMES}, {_SUMS}) "
                f"SELECT cast(at / {HOUR} AS INTEGER) * {HOUR} AS hour, {HOUR}, {_NAMES}, {_SUMMED} "
                f"FROM usage WHERE span = 0 AND at < ? GROUP BY hour, {_NAMES}",
                (before,),
            )
            folded = connection.execute("DELETE FROM usage WHERE span = 0 AND at < ?", (before,)).rowcount
            oldest = now - HOURS_DAYS * DAY
            connection.execute("DELETE FROM usage WHERE span > 0 AND at < ?", (oldest,))
            connection.execute("DELETE FROM spent WHERE day < ?", (int(oldest // DAY),))
        return folded

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """After a failure the file is opened anew: it may have been replaced, or its disk come back."""
        try:
            if self._connection is not None and not self._is_ours():
                self.close()
            connection = self._connection or self._open()
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError):
            self.close()  # rolls back
            raise

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = None
        connection = self._connection = sqlite3.connect(self._path, timeout=BUSY, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")  # readers and a second gateway do not stand in the way
        connection.execute("PRAGMA synchronous = NORMAL")  # what is committed survives the process, however it ends
        connection.execute("PRAGMA journal_size_limit = 16777216")
        if _version(connection, self._path) == 0:
            connection.executescript(_SCHEMA)
        self._file = _identity(self._path)
        return connection

    def _is_ours(self) -> bool:
        """Is the open file still the one of that name? (What is written to a deleted one is lost without an error.)"""
        return self._file == _identity(self._path)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def spent_since(path: Path, day: int) -> list[tuple[int, str, str, float]]:
    """(day, backend, client, USD) from this day on; nothing where there is no file yet. Raises sqlite3.Error."""
    if not path.exists():
        return []
    with closing(_read_only(path)) as connection:
        if not _version(connection, path):
            return []  # being made
        rows = connection.execute("SELECT day, backend, client, usd FROM spent WHERE day >= ?", (day,))
        return [(int(d), str(backend), str(client), float(usd)) for d, backend, client, usd in rows]


def sums_since(path: Path, since: float, by: Sequence[str] = GROUPS) -> list[Sums]:
    """What was used since (Unix seconds), summed by these of GROUPS, the most tokens first. Of hours those count that
    began since then. Raises sqlite3.Error."""
    groups = ", ".join(name for name in by if name in GROUPS)
    with closing(_read_only(path)) as connection:
        if not _version(connection, path):
            return []  # being made
        errors = "sum(CASE WHEN outcome = '200' THEN 0 ELSE requests END)"
        rows: Iterable[tuple[object, ...]] = connection.execute(
            f"SELECT {groups}, sum(requests), {errors}, {_SUMMED.partition(', ')[2]} FROM usage "
            f"WHERE span IN (0, {HOUR}) AND at >= ? GROUP BY {groups} "
            f"ORDER BY sum(prompt) + sum(completion) DESC, {groups}",
            (since,),
        )
        count = len(groups.split(", "))
        return [Sums(tuple(map(str, row[:count])), *row[count:]) for row in rows]  # type: ignore[arg-type]  # SQL's


def _read_only(path: Path) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=BUSY)
    try:
        connection.execute("SELECT 1 FROM sqlite_schema")
    except sqlite3.OperationalError:
        # A directory that cannot be written, and no gateway that has it open: nobody changes it either.
        connection.close()
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)
    return connection


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """0 = there are no tables yet."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        connection.close()
        raise sqlite3.DatabaseError(
            f"{path} was written by a newer gateway (format {version}, this one knows {VERSION})"
        )
    return version
