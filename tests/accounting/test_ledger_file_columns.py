"""The seconds of speech in the ledger, and files of gateways that did not count them."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.accounting.ledger import Ledger
from gateway.accounting.ledger_file import DAY, NAME, LedgerFile, read_spent, sums_since
from tests.accounting.test_ledger import NOW, entry

# What the gateways wrote that did not count speech, as they wrote it.
BEFORE = """
CREATE TABLE usage (
  at REAL NOT NULL, span INTEGER NOT NULL,
  client TEXT NOT NULL, alias TEXT NOT NULL, backend TEXT NOT NULL, endpoint TEXT NOT NULL, outcome TEXT NOT NULL,
  requests INTEGER NOT NULL, seconds REAL NOT NULL, prompt INTEGER NOT NULL, completion INTEGER NOT NULL,
  cached INTEGER NOT NULL, reasoning INTEGER NOT NULL, usd REAL NOT NULL, unpriced INTEGER NOT NULL
);
CREATE INDEX usage_at ON usage (span, at);
CREATE TABLE spent (
  day INTEGER NOT NULL, backend TEXT NOT NULL, client TEXT NOT NULL, usd REAL NOT NULL,
  PRIMARY KEY (day, backend, client)
) WITHOUT ROWID;
PRAGMA user_version = 1;
"""
COLUMNS = (
    "at, span, client, alias, backend, endpoint, outcome, requests, seconds, prompt, completion, cached, reasoning, "
    "usd, unpriced"
)
ROW = (NOW, 0, "hermes", "writer", "a", "chat", "200", 1, 2.0, 100, 20, 10, 5, 2.5, 0)
INSERT = f"INSERT INTO usage ({COLUMNS}) VALUES ({', '.join('?' * len(ROW))})"


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A ledger of such a gateway, with one request."""
    path = tmp_path / NAME
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(BEFORE)
        connection.execute(INSERT, ROW)
        connection.execute("INSERT INTO spent VALUES (?, 'a', 'hermes', 2.5)", (int(NOW // DAY),))
        connection.commit()
    return path


def audio(path: Path, since: float = 0.0) -> dict[tuple[str, ...], tuple[float, float]]:
    return {s.group: (s.audio_in_seconds, s.audio_out_seconds) for s in sums_since(path, since, ("client", "alias"))}


def test_seconds_of_speech_are_summed_by_client_and_alias_and_stay_in_hours(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / NAME)
    start = NOW - 91 * DAY
    for number in range(10):
        file.write([entry(start + number, endpoint="transcriptions", alias="transcribe", audio_in_seconds=1.5)])
        file.write([entry(start + number, endpoint="speech", client="webui", alias="speak", audio_out_seconds=0.5)])
    sums = {("hermes", "transcribe"): (15.0, 0.0), ("webui", "speak"): (0.0, 5.0)}
    assert audio(file._path) == sums
    assert file.fold(NOW) == 20
    assert audio(file._path) == sums
    file.close()


def test_a_file_of_an_older_gateway_is_read_before_anything_is_written(before: Path) -> None:
    assert audio(before) == {("hermes", "writer"): (0.0, 0.0)}
    (sums,) = sums_since(before, 0.0)
    assert (sums.requests, sums.prompt, sums.usd) == (1, 100, 2.5)
    assert read_spent(before, 0)[0] == [(int(NOW // DAY), "a", "hermes", 2.5)]


def test_a_file_of_an_older_gateway_goes_on_with_the_seconds(before: Path) -> None:
    ledger = Ledger(before.parent)
    ledger.open()
    ledger.put(entry(time.time(), alias="transcribe", audio_in_seconds=3.0))
    ledger.close()
    assert ledger.lost == 0
    assert audio(before) == {("hermes", "writer"): (0.0, 0.0), ("hermes", "transcribe"): (3.0, 0.0)}
    assert sum(s.requests for s in sums_since(before, 0.0)) == 2
    assert read_spent(before, 0)[0] == [(int(NOW // DAY), "a", "hermes", 2.5)]


def test_an_older_gateway_still_writes_to_the_file(tmp_path: Path) -> None:
    """It may run beside a newer one, or take the place of one again."""
    file = LedgerFile(tmp_path / NAME)
    file.write([entry(audio_in_seconds=3.0)])
    with closing(sqlite3.connect(file._path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        connection.execute(INSERT, ROW)
        connection.commit()
    file.close()
    assert audio(file._path) == {("hermes", "writer"): (3.0, 0.0)}
    assert sum(s.requests for s in sums_since(file._path, 0.0)) == 2


def test_two_gateways_may_open_the_file_of_an_older_one_at_once(before: Path) -> None:
    """None of them loses an entry, and the columns are added once."""
    ready, failures = threading.Barrier(4), []

    def write() -> None:
        file = LedgerFile(before)
        ready.wait()
        try:
            file.write([entry(audio_in_seconds=1.0)])
        except sqlite3.Error as error:
            failures.append(error)
        file.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert audio(before) == {("hermes", "writer"): (4.0, 0.0)}


class Contended(sqlite3.Connection):
    """Two connections that make a new file one with a write-ahead log: SQLite refuses one of them without waiting."""

    refusals = 2

    def execute(self, sql: str, /, *values: Any) -> sqlite3.Cursor:
        if "journal_mode" in sql and self.refusals:
            self.refusals -= 1
            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise busy
        return super().execute(sql, *values)


def test_where_sqlite_does_not_wait_for_another_process_the_ledger_does(
    before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Contended))
    file = LedgerFile(before)
    file.write([entry(audio_in_seconds=1.0)])
    file.close()
    monkeypatch.undo()
    assert audio(before) == {("hermes", "writer"): (1.0, 0.0)}


@pytest.mark.parametrize("odd", ["abc", b"\xff", float("inf"), -5.0])
def test_a_length_that_cannot_be_spoils_no_sum(tmp_path: Path, odd: object) -> None:
    file = LedgerFile(tmp_path / NAME)
    file.write([entry(audio_in_seconds=2.0), entry(audio_in_seconds=1.0, client="z")])
    file.close()
    with closing(sqlite3.connect(file._path)) as connection:
        connection.execute("UPDATE usage SET audio_in_seconds = ? WHERE client = 'z'", (odd,))
        connection.commit()
    assert audio(file._path) == {("hermes", "writer"): (2.0, 0.0), ("z", "writer"): (0.0, 0.0)}
