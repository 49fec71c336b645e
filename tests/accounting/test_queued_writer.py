"""The ledger while its file cannot be written: nobody waits for it, it is said once, and what is kept is bounded."""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from gateway.accounting.ledger import Ledger
from gateway.accounting.ledger_file import NAME, LedgerFile
from tests.accounting.test_ledger import count, entry, ledger, said, until
from tests.limits import within


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again soon."""
    monkeypatch.setattr(Ledger, "retry_most", 0.05)
    monkeypatch.setattr(Ledger, "flush", 0.01)
    monkeypatch.setattr("gateway.sqlite_file.BUSY", 0.05)


@pytest.mark.usefixtures("fast")
def test_a_locked_file_is_said_once_and_nothing_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    LedgerFile(tmp_path / NAME).write([entry()])
    with closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other, ledger(tmp_path) as opened:
        other.execute("BEGIN EXCLUSIVE")
        tries = watched_tries(opened)
        opened.put(entry())
        until(lambda: len(tries) >= 4)
        assert said(caplog, "cannot be written (database is locked)") == 1
        other.execute("COMMIT")
        until(lambda: count(opened.path) == 2)
        until(lambda: said(caplog, "is written again; entries lost: 0") == 1)


@pytest.mark.usefixtures("fast")
def test_a_gateway_that_stops_says_what_it_could_not_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).write_bytes(b"no database " * 100)
    with ledger(tmp_path) as opened:
        tries = watched_tries(opened)
        opened.put(entry())
        until(lambda: len(tries) >= 1)
        opened.put(entry())
    assert said(caplog, "could not be written until the end; entries lost: 2") == 1
    assert opened.lost == 2


def watched_tries(opened: Ledger) -> list[Exception]:
    """Filled with every failure from here on."""
    tries: list[Exception] = []
    told = opened._failed

    def failed(error: Exception) -> None:
        tries.append(error)
        told(error)

    opened._failed = failed  # type: ignore[method-assign]  # to see it, not to change it
    return tries


@pytest.mark.usefixtures("fast")
def test_a_folder_that_cannot_be_made_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "state").write_text("a file where the folder should be")
    with ledger(tmp_path / "state") as opened:
        tries = watched_tries(opened)
        opened.put(entry())
        until(lambda: len(tries) >= 3)
        (tmp_path / "state").unlink()
        until(lambda: count(opened.path) == 1)
    assert said(caplog, "cannot be written") == 1


@pytest.mark.usefixtures("fast")
def test_the_queue_of_the_ledger_is_bounded_and_keeps_the_newest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Ledger, "kept", 10)
    (tmp_path / "state").write_text("")
    with ledger(tmp_path / "state") as opened:
        tries = watched_tries(opened)
        for number in range(35):
            opened.put(entry(prompt=number))
            if number % 7 == 0:
                seen = len(tries)
                until(lambda: len(tries) > seen)  # noqa: B023
        (tmp_path / "state").unlink()
        until(lambda: count(opened.path) == 10)
        until(lambda: said(caplog, "entries lost: 25") == 1)
    with closing(sqlite3.connect(opened.path)) as connection:
        assert [n for (n,) in connection.execute("SELECT prompt FROM usage ORDER BY prompt")] == list(range(25, 35))


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("damage", ["garbage", "newer"])
def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / NAME
    if damage == "garbage":
        path.write_bytes(b"this is no database, and it is somebody's" * 100)
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with ledger(tmp_path) as opened:
        tries = watched_tries(opened)
        opened.put(entry())
        until(lambda: len(tries) >= 2)
    assert said(caplog, "budgets start at zero") == 1
    assert said(caplog, "cannot be written") == 1
    assert path.read_bytes()[100:] == before[100:]


@pytest.mark.usefixtures("fast")
def test_a_file_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    with ledger(tmp_path) as opened:
        opened.put(entry())
        until(lambda: count(opened.path) == 1)
        for file in tmp_path.iterdir():
            file.unlink()
        opened.put(entry())
        until(lambda: count(opened.path) == 1)


def test_recording_never_waits(tmp_path: Path) -> None:
    """Whatever the file does: here its thread hangs for good."""
    opened = Ledger(tmp_path)
    hangs = threading.Event()
    opened.write = lambda _: hangs.wait()  # type: ignore[method-assign,assignment]  # a disk that hangs
    opened.open()
    with within(5.0):
        for _ in range(Ledger.kept + 10_000):
            opened.put(entry())
    assert len(opened._queue) == Ledger.kept
    assert opened.lost >= 10_000 - 1
    hangs.set()
    opened.close()
