"""The usage ledger as a file: `usage.db`, SQLite. Everything here blocks; the event loop uses ledger.py instead.

`usage` has a row per request (`span` 0) and, for old requests, a row per hour (`span` 3600). `spent` has USD per UTC
day, so that budgets can be restored after a restart without adding up a month of requests.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import astuple

from gateway.sqlite_file import SqliteFile, read_only

NAME = "usage.db"
VERSION = 1
HOUR, DAY = 3600, 86400  # seconds
SINGLE_DAYS, SINGLE_MOST = 90, 2_000_000  # requests with rows of their own: days, number
HOURS_DAYS = 3 * 365  # then the rows of hours are deleted too
TOGETHER = 20  # entries of one statement: each then takes half the time
GROUPS = ("client", "alias", "backend")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
  at REAL NOT NULL, span INTEGER NOT NULL,
  client TEXT NOT NULL, alias TEXT NOT NULL, backend TEXT NOT NULL, endpoint TEXT NOT NULL, outcome TEXT NOT NULL,
  requests INTEGER NOT NULL, seconds REAL NOT NULL, prompt INTEGER NOT NULL, completion INTEGER NOT NULL,
  cached INTEGER NOT NULL, reasoning INTEGER NOT NULL, usd REAL NOT NULL, unpriced INTEGER NOT NULL,
  audio_in_seconds REAL NOT NULL DEFAULT 0, audio_out_seconds REAL NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS usage_at ON usage (span, at);
CREATE TABLE IF NOT EXISTS spent (
  day INTEGER NOT NULL, backend TEXT NOT NULL, client TEXT NOT NULL, usd REAL NOT NULL,
  PRIMARY KEY (day, backend, client)
) WITHOUT ROWID;
"""
_NAMES = "client, alias, backend, endpoint, outcome"
# Columns that older gateways did not write. They have a default, so that an older gateway can still write to the file
# of a newer one (beside it, or after a step back); therefore the version of the tables stays.
_ADDED = ("audio_in_seconds", "audio_out_seconds")
_SUMS = f"requests, seconds, prompt, completion, cached, reasoning, usd, unpriced, {', '.join(_ADDED)}"
SpentRow = tuple[int, str, str, float]  # day, backend, client, USD
NUMBER_MOST = 10**12  # a larger number in the file was not written by the gateway


def _insert(rows: int) -> str:
    """SQL that inserts this many entries."""
    marks = "(?, 0, " + ", ".join("?" * (len(Entry.__struct_fields__) - 1)) + ")"
    return f"INSERT INTO usage (at, span, {_NAMES}, {_SUMS}) VALUES " + ", ".join([marks] * rows)


def _number(name: str) -> str:
    """SQL for a column, with 0 for a value that cannot be a count, so that it does not spoil the sum."""
    fits = f"typeof({name}) IN ('integer', 'real') AND {name} BETWEEN 0 AND {NUMBER_MOST}"
    return f"(CASE WHEN {fits} THEN {name} ELSE 0 END)"


_SUMMED = ", ".join(f"sum({_number(name)})" for name in _SUMS.split(", "))
_READABLE = (
    "typeof(day) = 'integer' AND typeof(backend) = 'text' AND typeof(client) = 'text' "
    f"AND typeof(usd) IN ('integer', 'real') AND usd BETWEEN 0 AND {NUMBER_MOST}"
)  # valid rows of `spent`; the same rule as `_is_spent`
_DATED = "typeof(at) IN ('integer', 'real')"


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One request that has ended, or (`requests` 0) an answer that was complete but not used. `at`: Unix seconds.
    `unpriced` 1 = the cost of its tokens is unknown. `audio_in_seconds`: of speech that was transcribed or translated,
    `audio_out_seconds`: that was spoken; 0 also where unknown. In the order of the table's columns."""

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
    audio_in_seconds: float = 0.0
    audio_out_seconds: float = 0.0


class Sums(NamedTuple):
    """The sums of a group of requests; `errors`: requests that failed."""

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
    audio_in_seconds: float = 0.0
    audio_out_seconds: float = 0.0


class LedgerFile:
    """The connection for writing; used by one thread. Every method raises sqlite3.Error or OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = SqliteFile(path, _SCHEMA, VERSION, prepare=_add_columns)

    def write(self, entries: Sequence[Entry]) -> None:
        """Write all entries or none."""
        with self._transaction() as connection:
            rows = list(map(astuple, entries))
            many = len(rows) - len(rows) % TOGETHER
            together = [chain.from_iterable(rows[at : at + TOGETHER]) for at in range(0, many, TOGETHER)]
            connection.executemany(_insert(TOGETHER), map(tuple, together))
            connection.executemany(_insert(1), rows[many:])
            spent = [(int(e.at // DAY), e.backend, e.client, e.usd) for e in entries if e.usd > 0.0]
            connection.executemany(
                "INSERT INTO spent VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET usd = usd + excluded.usd", spent
            )

    def repair(self, spent: Iterable[SpentRow]) -> None:
        """Move unreadable rows of `spent` into the table `set_aside`, and write these rows in their place."""
        with self._transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS set_aside (day, backend, client, usd)")
            connection.execute(
                f"INSERT INTO set_aside SELECT day, backend, client, usd FROM spent WHERE NOT ({_READABLE})"
            )
            connection.execute(f"DELETE FROM spent WHERE NOT ({_READABLE})")
            connection.executemany(
                "INSERT INTO spent VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET usd = max(usd, excluded.usd)", spent
            )

    def fold(self, now: float, most: int = SINGLE_MOST) -> int:
        """Replace the rows of old requests, or of too many, by rows per hour. Returns how many were replaced."""
        with self._transaction() as connection:
            before = now - SINGLE_DAYS * DAY
            newest = connection.execute(
                f"SELECT at FROM usage WHERE span = 0 AND {_DATED} ORDER BY at DESC LIMIT 1 OFFSET ?", (most,)
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
        self._file.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction. After a failure the file is opened again: it may have been replaced, or its disk be back."""
        try:
            self._file.close_if_replaced()
            with self._file.transaction() as connection:
                yield connection
        except BaseException:
            self._file.close()
            raise


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(usage)")}


def _add_columns(connection: sqlite3.Connection) -> None:
    """Give the table of an older gateway the columns that it lacks; its rows stay as they are."""
    if _columns(connection).issuperset(_ADDED):
        return
    connection.execute("BEGIN IMMEDIATE")  # another gateway may be adding them now
    for name in _ADDED:
        if name not in _columns(connection):
            connection.execute(f"ALTER TABLE usage ADD COLUMN {name} REAL NOT NULL DEFAULT 0")
    connection.execute("COMMIT")


def read_spent(path: Path, day: int) -> tuple[list[SpentRow], int]:
    """Spending from this day on, and how many rows of the file could not be read. Where there are any, the costs of
    single requests are added up, so an unreadable row resets no budget. Nothing where there is no file yet. Raises
    sqlite3.Error, OSError."""
    if not path.exists():
        return [], 0
    with read_only(path, VERSION) as connection:
        if connection is None:
            return [], 0
        found: dict[tuple[int, str, str], float] = {}
        unreadable = 0
        for row in connection.execute("SELECT day, backend, client, usd FROM spent"):
            if not _is_spent(*row):
                unreadable += 1
            elif row[0] >= day:
                found[row[0], row[1], row[2]] = float(row[3])
        if unreadable:
            for key, usd in _summed_spent(connection, day):
                found[key] = max(usd, found.get(key, 0.0))
        return [(*key, usd) for key, usd in sorted(found.items())], unreadable


def _is_spent(day: object, backend: object, client: object, usd: object) -> bool:
    if type(day) is not int or not isinstance(backend, str) or not isinstance(client, str):
        return False
    return isinstance(usd, (int, float)) and 0.0 <= usd <= NUMBER_MOST


def _summed_spent(connection: sqlite3.Connection, day: int) -> Iterator[tuple[tuple[int, str, str], float]]:
    rows = connection.execute(
        f"SELECT cast(at / {DAY} AS INTEGER) AS day, backend, client, sum({_number('usd')}) AS usd FROM usage "
        f"WHERE span IN (0, {HOUR}) AND at >= ? AND {_DATED} GROUP BY day, backend, client HAVING usd > 0",
        (day * DAY,),
    )
    for row in rows:
        if _is_spent(*row):
            yield (row[0], row[1], row[2]), float(row[3])


def sums_since(path: Path, since: float, by: Sequence[str] = GROUPS) -> list[Sums]:
    """Usage since this time (Unix seconds), summed by these of GROUPS, most tokens first. Rows of hours count if the
    hour began since then. Raises sqlite3.Error."""
    groups = ", ".join(name for name in by if name in GROUPS)
    with read_only(path, VERSION) as connection:
        if connection is None:
            return []
        # "joined" is an outcome of older gateways: the answer of a request that this one repeated.
        errors = f"sum(CASE WHEN outcome IN ('200', 'joined') THEN 0 ELSE {_number('requests')} END)"
        missing = set(_ADDED) - _columns(connection)  # no gateway of this version has written the file yet
        rest = ", ".join("0.0" if name in missing else f"sum({_number(name)})" for name in _SUMS.split(", ")[1:])
        rows: Iterable[tuple[object, ...]] = connection.execute(
            f"SELECT {groups}, sum({_number('requests')}), {errors}, {rest} FROM usage "
            f"WHERE span IN (0, {HOUR}) AND at >= ? AND {_DATED} GROUP BY {groups} "
            f"ORDER BY sum({_number('prompt')}) + sum({_number('completion')}) DESC, {groups}",
            (since,),
        )
        count = len(groups.split(", "))
        return [Sums(tuple(map(str, row[:count])), *row[count:]) for row in rows]  # type: ignore[arg-type]  # SQL's
