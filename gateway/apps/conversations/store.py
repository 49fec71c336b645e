"""Kept responses on disk: `responses.db` (SQLite) in `server.data`. Everything here blocks: the event loop calls it in
a thread.

A response is kept with what was sent for it, and with the name of the one before. Those that go on from one another are
a conversation (`root` is its first one): it ages with its last use, and is dropped as a whole.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gateway.shortage import check_disk
from gateway.sqlite_file import SqliteFile

NAME = "responses.db"
RESPONSES_MOST = 10_000  # of one client
TOTAL_MOST = 100_000  # of all clients
DEPTH_MOST = 1_000  # responses in one conversation
ITEMS_MOST = 1_000  # of one response that can be referred to
ITEM_ID_MOST = 200  # characters
SHARE = 4  # a client may have this part of the bytes

VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
  owner TEXT NOT NULL, id TEXT NOT NULL, root TEXT NOT NULL, previous TEXT, depth INTEGER NOT NULL,
  used REAL NOT NULL, size INTEGER NOT NULL, local INTEGER NOT NULL, input BLOB NOT NULL, response BLOB NOT NULL,
  PRIMARY KEY (owner, id)
);
CREATE INDEX IF NOT EXISTS responses_sizes ON responses (owner, used, root, size);
CREATE INDEX IF NOT EXISTS responses_ages ON responses (used, owner, root, size);
"""
# Which response has an item; made also in a file from before there was one.
_ITEMS = """
CREATE TABLE IF NOT EXISTS items (
  owner TEXT NOT NULL, item TEXT NOT NULL, response TEXT NOT NULL, PRIMARY KEY (owner, item)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_responses ON items (owner, response);
CREATE TRIGGER IF NOT EXISTS items_go AFTER DELETE ON responses BEGIN
  DELETE FROM items WHERE owner = old.owner AND response = old.id;
END;
"""
_CHAIN = """WITH RECURSIVE chain (id, previous, depth) AS (
  SELECT id, previous, depth FROM responses WHERE owner = :owner AND id = :id
  UNION ALL
  SELECT r.id, r.previous, r.depth FROM responses r JOIN chain c ON r.owner = :owner AND r.id = c.previous
    AND r.depth = c.depth - 1
) SELECT {} FROM chain JOIN responses r ON r.owner = :owner AND r.id = chain.id ORDER BY r.depth
"""
_TURNS, _SIZE = _CHAIN.format("r.depth, r.input, r.response"), _CHAIN.format("coalesce(sum(r.size), 0)")


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA secure_delete = ON")
    connection.executescript(_ITEMS)


class Turn(NamedTuple):
    """What was sent for a response, a JSON list of items, and the response, a JSON object."""

    input: bytes
    response: bytes


class Conversation(NamedTuple):
    """The turns up to one response. `local`: it may not leave the LAN."""

    turns: list[Turn]
    local: bool

    @property
    def size(self) -> int:
        return sum(len(turn.input) + len(turn.response) for turn in self.turns)


class _OutputItem(msgspec.Struct):
    id: Any = None


class _Output(msgspec.Struct):
    output: list[_OutputItem] = []


_decode_output = msgspec.json.Decoder(_Output).decode


def _items_of(response: bytes) -> list[str]:
    """The ids of the items of a response's output, as far as they are ids."""
    try:
        output = _decode_output(response).output[:ITEMS_MOST]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [one.id for one in output if isinstance(one.id, str) and len(one.id) <= ITEM_ID_MOST]


class ResponseStore:
    """Used by one thread at a time. Times are Unix seconds. `keep`: seconds after the last use; `most`: bytes."""

    def __init__(self, folder: Path, keep: float, most: int) -> None:
        self.path = folder / NAME
        self._keep, self._most = keep, most
        self._file = SqliteFile(self.path, _SCHEMA, VERSION, private=True, prepare=_prepare)

    def open(self) -> None:
        self._file.open()

    def close(self) -> None:
        self._file.close()

    @property
    def _db(self) -> sqlite3.Connection:
        return self._file.open()

    def response_with(self, owner: str, item: str) -> str | None:
        """The id of the response that has this item in its output; None = none that is kept."""
        asked = "SELECT response FROM items WHERE owner = ? AND item = ?"
        row = self._db.execute(asked, (owner, item)).fetchone()
        return None if row is None else str(row[0])

    def size(self, owner: str, name: str, now: float) -> int | None:
        """Bytes of a response and of what was sent for it; None = it is not kept."""
        asked = "SELECT size FROM responses WHERE owner = ? AND id = ? AND used > ?"
        row = self._db.execute(asked, (owner, name, now - self._keep)).fetchone()
        return None if row is None else int(row[0])

    def response(self, owner: str, name: str, now: float) -> bytes | None:
        asked = "SELECT response FROM responses WHERE owner = ? AND id = ? AND used > ?"
        row = self._db.execute(asked, (owner, name, now - self._keep)).fetchone()
        return None if row is None else bytes(row[0])

    def conversation_size(self, owner: str, name: str) -> int:
        """Bytes of the turns up to this response."""
        return int(self._db.execute(_SIZE, {"owner": owner, "id": name}).fetchone()[0])

    def conversation(self, owner: str, name: str, now: float, most: int) -> Conversation | None:
        """The turns up to this response; its conversation counts as used. None = it is not kept, or not all of it.
        Raises OverflowError if it has more than `most` bytes."""
        asked = "SELECT root, depth, local FROM responses WHERE owner = ? AND id = ? AND used > ?"
        found = self._db.execute(asked, (owner, name, now - self._keep)).fetchone()
        if found is None:
            return None
        root, depth, local = found
        turns: list[Turn] = []
        for number, (at, sent, response) in enumerate(self._db.execute(_TURNS, {"owner": owner, "id": name})):
            if at != number:
                return None
            most -= len(sent) + len(response)
            if most < 0:
                raise OverflowError
            turns.append(Turn(sent, response))
        if len(turns) != depth + 1:
            return None
        self._db.execute("UPDATE responses SET used = ? WHERE owner = ? AND root = ?", (now, owner, root))
        return Conversation(turns, bool(local))

    def add(self, owner: str, name: str, previous: str | None, turn: Turn, now: float, *, local: bool) -> bool:
        """Keep a response; what is older gives way. False = it cannot be kept: it is too large, or the one before is
        gone. Raises OwnShortage where that would fill the disk."""
        check_disk(self.path.parent, 2 * (len(turn.input) + len(turn.response)))
        with self._file.transaction() as db:
            kept = self._add(owner, name, previous, turn, now, local)
            if not kept:
                db.execute("ROLLBACK")
        return kept

    def _add(self, owner: str, name: str, previous: str | None, turn: Turn, now: float, local: bool) -> bool:
        root, depth = name, 0
        if previous is not None:
            asked = "SELECT root, depth FROM responses WHERE owner = ? AND id = ?"
            before = self._db.execute(asked, (owner, previous)).fetchone()
            if before is None or before[1] + 1 >= DEPTH_MOST:
                return False
            root, depth = before[0], before[1] + 1
        self.drop_old(now)
        size = len(turn.input) + len(turn.response)
        row = (owner, name, root, previous, depth, now, size, local, turn.input, turn.response)
        self._db.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        items = [(owner, item, name) for item in _items_of(turn.response)]
        self._db.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", items)
        self._db.execute("UPDATE responses SET used = ? WHERE owner = ? AND root = ?", (now, owner, root))
        new = owner, root
        of_owner = self._make_room(new, " WHERE owner = ?", (owner,), self._most // SHARE, RESPONSES_MOST)
        return of_owner and self._make_room(new, "", (), self._most, TOTAL_MOST)

    def _make_room(
        self, new: tuple[str, str], where: str, args: tuple[str, ...], size_most: int, count_most: int
    ) -> bool:
        """Drop the conversations whose last use is longest ago, of those `where`, until the rest fits. False = the new
        one (its owner and root) alone is too large."""
        while True:
            sums = f"SELECT count(*), coalesce(sum(size), 0) FROM responses{where}"
            count, size = self._db.execute(sums, args).fetchone()
            if count <= count_most and size <= size_most:
                return True
            oldest = f"SELECT owner, root FROM responses{where} ORDER BY used, rowid LIMIT 1"
            found = self._db.execute(oldest, args).fetchone()
            if found == new:
                return False
            self._db.execute("DELETE FROM responses WHERE owner = ? AND root = ?", found)

    def drop(self, owner: str, name: str) -> bool:
        """False = it is not kept."""
        asked = "DELETE FROM responses WHERE owner = ? AND id = ?"
        return bool(self._db.execute(asked, (owner, name)).rowcount)

    def drop_old(self, now: float) -> None:
        """Drop what was not used for too long."""
        self._db.execute("DELETE FROM responses WHERE used <= ?", (now - self._keep,))
