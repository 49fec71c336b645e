"""The usage ledger: nothing is lost, nobody waits for it, and it does not grow for ever."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.accounting.ledger import Ledger
from gateway.accounting.ledger_file import DAY, GROUPS, HOUR, NAME, Entry, LedgerFile, read_spent, sums_since
from tests.demo_process import ROOT
from tests.waiting import wait_until

NOW = 1_800_000_000.0  # Unix seconds
PATIENCE = 20.0


def entry(at: float = NOW, **more: Any) -> Entry:
    usual = Entry(at, "hermes", "writer", "a", "chat", "200", 1, 2.0, 100, 20, 10, 5, 0.0, 0)
    return replace(usual, **more)


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, PATIENCE)


def count(path: Path) -> int:
    return sum(s.requests for s in sums_since(path, 0.0)) if path.exists() else 0


@contextmanager
def ledger(folder: Path) -> Iterator[Ledger]:
    opened = Ledger(folder)
    opened.open()
    try:
        yield opened
    finally:
        opened.close()


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


# -- what is in it ------------------------------------------------------------------------------------------------


def test_all_that_was_recorded_is_there_after_the_end(tmp_path: Path) -> None:
    with ledger(tmp_path / "state") as opened:
        for number in range(1000):
            opened.put(entry(NOW + number, usd=0.001))
    (sums,) = sums_since(tmp_path / "state" / NAME, 0.0)
    assert sums.group == ("hermes", "writer", "a")
    assert (sums.requests, sums.errors, sums.seconds) == (1000, 0, 2000.0)
    assert (sums.prompt, sums.completion, sums.cached, sums.reasoning) == (100_000, 20_000, 10_000, 5_000)
    assert sums.usd == pytest.approx(1.0)


def test_the_ledger_is_written_without_being_closed(tmp_path: Path) -> None:
    with ledger(tmp_path) as opened:
        for _ in range(3):
            before = count(opened.path)
            opened.put(entry())
            until(lambda: count(opened.path) == before + 1)  # noqa: B023


def test_sums_are_of_the_time_and_the_groups_that_were_asked_for(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / NAME)
    file.write([entry(client=c, backend=b, prompt=p) for c, b, p in (("x", "a", 1), ("y", "a", 2), ("y", "b", 4))])
    file.write([entry(NOW - 10.0, prompt=50), entry(outcome="upstream_error", requests=1, prompt=0, completion=0)])
    file.write([entry(client="x", outcome="unused", requests=0, unpriced=1)])
    file.close()

    def asked(*by: str, since: float = NOW) -> dict[tuple[str, ...], tuple[int, int, int, int]]:
        return {s.group: (s.requests, s.errors, s.prompt, s.unpriced) for s in sums_since(file._path, since, by)}

    assert asked("client") == {("x",): (1, 0, 101, 1), ("y",): (2, 0, 6, 0), ("hermes",): (1, 1, 0, 0)}
    assert asked("backend") == {("a",): (3, 1, 103, 1), ("b",): (1, 0, 4, 0)}
    assert asked("client", since=NOW - 10.0)[("hermes",)] == (2, 1, 50, 0)
    assert set(asked(*GROUPS)) == {(c, "writer", b) for c, b in (("x", "a"), ("y", "a"), ("y", "b"), ("hermes", "a"))}


def test_spending_is_remembered_by_utc_day(tmp_path: Path) -> None:
    day = int(NOW // DAY)
    with ledger(tmp_path) as opened:
        for at, usd in ((NOW, 1.0), (NOW + 1.0, 0.5), (NOW + DAY, 4.0), (NOW, 0.0)):
            opened.put(entry(at, backend="cloud", usd=usd))
    assert read_spent(opened.path, day)[0] == [(day, "cloud", "hermes", 1.5), (day + 1, "cloud", "hermes", 4.0)]
    assert read_spent(opened.path, day + 1)[0] == [(day + 1, "cloud", "hermes", 4.0)]


def test_a_new_ledger_tells_what_the_one_before_spent(tmp_path: Path) -> None:
    now = time.time()
    with ledger(tmp_path) as opened:
        opened.put(entry(now, backend="cloud", usd=2.5))
        opened.put(entry(now - 60 * DAY, backend="cloud", usd=7.0))
    again = Ledger(tmp_path)
    try:
        assert again.open() == [(int(now // DAY), "cloud", "hermes", 2.5)]
    finally:
        again.close()


# -- how it ends --------------------------------------------------------------------------------------------------

WRITER = """
import sys, time
from pathlib import Path
from gateway.accounting.ledger import Ledger
from gateway.accounting.ledger_file import Entry
ledger = Ledger(Path(sys.argv[1]))
ledger.open()
number = 0
while True:
    ledger.put(Entry(time.time(), "c", "a", "b", "chat", "200", 1, 0.0, number, 0, 0, 0, 0.0, 0))
    number += 1
    time.sleep(0.002)
"""


def test_a_killed_process_loses_a_second_at_most(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT)
    try:
        until(lambda: count(tmp_path / NAME) > 400)
        killed = time.time()
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    with closing(sqlite3.connect(tmp_path / NAME)) as connection:
        rows = connection.execute("SELECT prompt, at FROM usage ORDER BY prompt").fetchall()
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert [number for number, _ in rows] == list(range(len(rows))), "a gap"
    assert rows[-1][1] > killed - 1.0


def test_two_gateways_may_write_at_the_same_time(tmp_path: Path) -> None:
    with ledger(tmp_path) as one, ledger(tmp_path) as two:
        for _ in range(200):
            one.put(entry(client="one"))
            two.put(entry(client="two"))
    assert {s.group: s.requests for s in sums_since(one.path, 0.0, ["client"])} == {("one",): 200, ("two",): 200}


def test_a_reader_does_not_stand_in_the_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    LedgerFile(tmp_path / NAME).write([entry()])
    with closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as reader, ledger(tmp_path) as opened:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM usage").fetchone() == (1,)
        opened.put(entry())
        until(lambda: count(opened.path) == 2)
        assert reader.execute("SELECT count(*) FROM usage").fetchone() == (1,), "it sees one moment"
    assert not said(caplog, "cannot be written")


# -- how it grows -------------------------------------------------------------------------------------------------


def test_old_requests_become_hours_and_sums_stay(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / NAME)
    old = NOW - 91 * DAY
    start = old - old % HOUR
    entries = [entry(start + i, client="x" if i % 2 else "y", usd=0.25, unpriced=i % 2) for i in range(100)]
    file.write([*entries, entry(start + 10, outcome="queue_full"), entry(NOW - 89 * DAY)])
    before = sums_since(file._path, 0.0)
    assert file.fold(NOW) == 101
    assert sums_since(file._path, 0.0) == before
    assert file.fold(NOW) == 0
    with closing(sqlite3.connect(file._path)) as connection:
        spans = connection.execute("SELECT span, count(*) FROM usage GROUP BY span").fetchall()
    assert spans == [(0, 1), (HOUR, 3)]
    assert sums_since(file._path, start + 1.0) != before, "an hour counts where it began"
    file.close()


def test_too_many_requests_become_hours_before_their_time(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / NAME)
    file.write([entry(NOW - 500 + i) for i in range(500)])
    assert file.fold(NOW, most=100) == 400
    assert sum(s.requests for s in sums_since(file._path, 0.0)) == 500
    file.close()


def test_even_hours_go_in_the_end(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / NAME)
    file.write([entry(NOW - 4 * 365 * DAY, usd=1.0), entry()])
    file.fold(NOW)
    assert sum(s.requests for s in sums_since(file._path, 0.0)) == 1
    assert read_spent(file._path, 0)[0] == []
    file.close()


def test_the_ledger_can_be_read_where_nothing_may_be_written(tmp_path: Path) -> None:
    """A copy in a read-only place; without the right to make the files of SQLite's journal."""
    file = LedgerFile(tmp_path / NAME)
    file.write([entry()])
    file.close()
    for extra in ("-wal", "-shm"):
        (tmp_path / (NAME + extra)).unlink(missing_ok=True)
    os.chmod(tmp_path, 0o555)
    try:
        assert count(tmp_path / NAME) == 1
    finally:
        os.chmod(tmp_path, 0o755)
