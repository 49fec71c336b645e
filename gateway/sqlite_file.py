"""A SQLite file in `server.data`: opened, checked for its version, written in transactions. Everything here blocks."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

BUSY = 5.0  # seconds to wait for a transaction of another process
AGAIN = 0.02  # seconds between two tries where SQLite itself does not wait


class SqliteFile:
    """One connection, for one thread at a time; `schema` makes the tables of `version`.
    `private`: only its owner may read the file. `prepare` gets each new connection. Raises sqlite3.Error, OSError."""

    def __init__(
        self,
        path: Path,
        schema: str,
        version: int,
        *,
        private: bool = False,
        prepare: Callable[[sqlite3.Connection], object] = lambda connection: None,
    ) -> None:
        self.path = path
        self._schema, self._version = schema, version
        self._private, self._prepare = private, prepare
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the file that is open

    def open(self) -> sqlite3.Connection:
        """The connection, opened unless it is."""
        return self._connection or self._open()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close_if_replaced(self) -> None:
        """Close a file that is no longer the one at the path: writes to a deleted file are lost without an error."""
        if self._connection is not None and self._identity != _identity(self.path):
            self.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; what is inside may roll back. After a failure (a full disk) the next one can begin."""
        db = self.open()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            if db.in_transaction:
                db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite has rolled back itself after some failures
                db.execute("ROLLBACK")
            raise

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._private:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            os.chmod(self.path, 0o600)
        connection = sqlite3.connect(self.path, timeout=BUSY, isolation_level=None, check_same_thread=False)
        try:
            version = _version_of(connection, self.path, self._version)
            _use_wal(connection)  # readers and a second gateway do not block the writer
            connection.execute("PRAGMA synchronous = NORMAL")  # committed data survives a crash of the process
            connection.execute("PRAGMA journal_size_limit = 16777216")
            if version == 0:
                connection.executescript(f"{self._schema}\nPRAGMA user_version = {self._version};")
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity = connection, _identity(self.path)
        return connection


@contextmanager
def read_only(path: Path, version: int) -> Iterator[sqlite3.Connection | None]:
    """A connection that reads a file of this version; None while another process makes its tables. Raises
    sqlite3.Error."""
    with closing(open_read_only(path)) as connection:
        yield connection if _version_of(connection, path, version) else None


def open_read_only(path: Path, *, immutable: bool = True) -> sqlite3.Connection:
    """A connection that reads. `immutable`: also where the directory is not writable and no gateway has the file open:
    nothing changes it, so it is read as it is, without a journal beside it. Raises sqlite3.Error."""
    uri = path.absolute().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=BUSY)
    try:
        connection.execute("SELECT 1 FROM sqlite_schema")
    except sqlite3.OperationalError:
        connection.close()
        if not immutable:
            raise
        connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda text: text.decode(errors="replace")
    return connection


def _version_of(connection: sqlite3.Connection, path: Path, known: int) -> int:
    """The version of the tables; 0: there are none yet. Raises DatabaseError for one above `known`."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > known:
        raise sqlite3.DatabaseError(f"{path} was written by a newer gateway (format {version}, this one knows {known})")
    return version


def _use_wal(connection: sqlite3.Connection) -> None:
    """SQLite does not wait here while another process does the same, so this does."""
    end = time.monotonic() + BUSY
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(AGAIN)


def _identity(path: Path) -> tuple[int, int] | None:
    """The device and the inode; None where there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
