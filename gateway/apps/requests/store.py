"""The last requests on disk: `requests.db` (SQLite) in `server.data`. Everything here blocks: the event loop calls it
in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gateway.sqlite_file import SqliteFile

NAME = "requests.db"
VERSION = 1
DAY = 86400.0
PRUNE_AFTER = 500  # rows that are written between two looks at what is too old or too many
FOUND_MOST = 1000  # requests of one answer

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
