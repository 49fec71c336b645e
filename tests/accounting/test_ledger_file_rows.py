"""Rows that no gateway has written, entries that no file takes, files that are none: each is set aside and told, and
nothing else is lost by it."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.accounting.ledger import Ledger
from gateway.accounting.ledger_file import DAY, NAME, TOGETHER, Entry, LedgerFile, read_spent, sums_since
from gateway.metrics.registry import Metrics
from tests.accounting.test_ledger import entry
from tests.support import running_gateway
from tests.waiting import wait_until

TODAY = int(time.time() // DAY)
ODD: list[tuple[str, Any]] = [
    ("usd", "abc"),
    ("usd", b"\x00\xff"),
    ("usd", float("inf")),
    ("usd", -5.0),
    ("usd", 1e30),
    ("day", "today"),
    ("day", 1.5),
    ("day", b"x"),
    ("backend", b"\xff"),
    ("client", b"\xff"),
]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "flush", 0.01)


def written(folder: Path) -> Path:
    """A ledger in which `cloud` was paid 2 USD by one client and 3 by another, today."""
    file = LedgerFile(folder / NAME)
    file.write([entry(time.time(), backend="cloud", client=c, usd=usd) for c, usd in (("x", 2.0), ("y", 3.0))])
    file.close()
    return folder / NAME


def change(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement, values)


def opened(folder: Path, metrics: Metrics | None = None) -> tuple[Ledger, list[tuple[int, str, str, float]]]:
    ledger = Ledger(folder, metrics.failures if metrics is not None else None)
    try:
        return ledger, ledger.open()
    finally:
        ledger.close()


@pytest.mark.parametrize(("column", "odd"), ODD, ids=lambda value: repr(value)[:12])
def test_a_mistyped_row_of_what_was_spent_is_set_aside_and_no_budget_is_new(
    tmp_path: Path, column: str, odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path, metrics = written(tmp_path), Metrics()
    change(path, f"UPDATE spent SET {column} = ? WHERE client = 'x'", odd)
    ledger, rows = opened(tmp_path, metrics)
    assert rows == [(TODAY, "cloud", "x", 2.0), (TODAY, "cloud", "y", 3.0)], "as the requests themselves tell"
    assert ledger.lost == 1
    assert metrics.registry.get_sample_value("gateway_internal_failures_total", {"part": "ledger"}) == 1.0
    assert sum("set aside" in record.getMessage() for record in caplog.records) == 1
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        assert connection.execute("SELECT count(*) FROM set_aside").fetchone() == (1,)
    caplog.clear()
    assert opened(tmp_path)[1] == rows, "and from now on the file is whole"
    assert not caplog.records


def test_text_that_is_no_utf8_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = written(tmp_path)
    change(path, "UPDATE spent SET client = cast(x'ff41' AS TEXT) WHERE client = 'x'")
    change(path, "UPDATE usage SET client = cast(x'ff41' AS TEXT) WHERE client = 'x'")
    assert {row[2] for row in opened(tmp_path)[1]} == {"\ufffdA", "y"}
    assert {sums.group for sums in sums_since(path, 0.0, ["client"])} == {("\ufffdA",), ("y",)}


@pytest.mark.parametrize("column", ["at", "usd", "prompt", "completion", "requests", "seconds", "span", "client"])
@pytest.mark.parametrize("odd", ["abc", b"\xff", float("inf"), -(2**63), 2**63 - 1], ids=lambda value: repr(value)[:12])
def test_a_mistyped_row_of_a_request_spoils_no_sum(tmp_path: Path, column: str, odd: Any) -> None:
    path = written(tmp_path)
    for _ in range(2):  # of two such rows the sum is no integer any more
        file = LedgerFile(path)
        file.write([entry(time.time(), backend="cloud", client="z")])
        file.close()
    change(path, f"UPDATE usage SET {column} = ? WHERE client = 'z'", odd)
    sums = {s.group: s for s in sums_since(path, 0.0, ["client"])}
    assert (sums["x",].usd, sums["y",].usd) == (2.0, 3.0)
    file = LedgerFile(path)
    file.fold(time.time() + 91 * DAY, most=1)
    file.close()
    assert {s.group: s.usd for s in sums_since(path, 0.0, ["client"])}["x",] == 2.0


numbers = st.sampled_from(
    [0, 1, -1, 2**53, 2**63 - 1, 2**63, 2**70, -(2**70), float("nan"), float("inf"), 1.5, "x", None]
)
texts = st.sampled_from(["x", "\ud800", "\x00", "é" * 1000, 5, None, b"\xff"])


@settings(max_examples=40)  # each makes a file
@given(st.lists(st.tuples(texts, numbers, numbers), max_size=5))
def test_what_the_file_does_not_take_takes_nothing_with_it(odd: list[tuple[Any, Any, Any]]) -> None:
    """Each entry is there, or counted as lost; the thread goes on either way."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder))
        entries = [entry(client=client, prompt=prompt, usd=usd) for client, prompt, usd in odd]
        for one in [entry(client="first"), *entries, entry(client="last")]:
            ledger.put(one)
        ledger.write(ledger.kept)
        ledger.close_file()
        with closing(sqlite3.connect(ledger.path)) as connection:
            connection.text_factory = bytes
            there = connection.execute("SELECT count(*) FROM usage").fetchone()[0]
            ends = connection.execute("SELECT count(*) FROM usage WHERE client IN ('first', 'last')").fetchone()[0]
        assert ends == 2
        assert there + ledger.lost == len(entries) + 2
        assert not ledger._held


@pytest.mark.usefixtures("fast")
def test_the_thread_outlives_what_it_cannot_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    ledger = Ledger(tmp_path, metrics.failures)
    ledger.open()
    try:
        for prompt in (1, 2**63, 10**400, 2):
            ledger.put(entry(prompt=prompt))
        wait_until(lambda: ledger.path.exists() and requests(ledger.path) == 2, 20.0)
        ledger.put(entry(prompt=3))
        wait_until(lambda: requests(ledger.path) == 3, 20.0)
        assert ledger._thread is not None
        assert ledger._thread.is_alive()
    finally:
        ledger.close()
    assert ledger.lost == 2
    assert any("does not take 2 entries" in record.getMessage() for record in caplog.records)


def requests(path: Path) -> int:
    try:
        return sum(s.requests for s in sums_since(path, 0.0))
    except sqlite3.Error:  # being made
        return 0


@pytest.mark.usefixtures("fast")
def test_the_thread_is_begun_anew_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a defect of ours, made for the test."""
    metrics, real = Metrics(), LedgerFile.write
    monkeypatch.setattr("gateway.supervision.AGAIN", 0.01)
    broken = iter([KeyError("a defect"), RuntimeError("another")])

    def write(self: LedgerFile, entries: Any) -> None:
        if (error := next(broken, None)) is not None:
            raise error
        real(self, entries)

    monkeypatch.setattr(LedgerFile, "write", write)
    ledger = Ledger(tmp_path, metrics.failures)
    ledger.open()
    try:
        for number in range(1, 4):
            ledger.put(entry())
            wait_until(lambda: failures(metrics) == min(number, 2), 20.0)  # noqa: B023
        wait_until(lambda: ledger.path.exists() and requests(ledger.path) == 3, 20.0)
    finally:
        ledger.close()
    assert (failures(metrics), ledger.lost) == (2.0, 0)


def failures(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("gateway_internal_failures_total", {"part": "ledger"}) or 0.0


def damaged(folder: Path) -> Iterator[tuple[str, Path]]:
    """State folders in which the ledger is none, each with what is wrong."""
    for name in ("junk", "empty", "truncated", "huge line", "directory", "no folder"):
        place = folder / name
        if name != "no folder":
            place.mkdir()
        if name == "junk":
            (place / NAME).write_bytes(b"\xff\x00junk" * 5000)
        elif name == "empty":
            (place / NAME).touch()
        elif name == "truncated":
            path = written(place)
            for left in place.glob(NAME + "-*"):
                left.unlink()
            path.write_bytes(path.read_bytes()[:5000])
        elif name == "huge line":
            (place / NAME).write_bytes(b"x" * 10_000_000)
        elif name == "directory":
            (place / NAME).mkdir()
        else:
            place.write_text("a file where the folder should be")
        yield name, place


async def test_a_gateway_starts_and_serves_whatever_its_state_folder_holds(tmp_path: Path) -> None:
    for name, folder in damaged(tmp_path):
        if folder.is_dir():
            (folder / "shared.json").write_bytes(b"\xff" * 100_000)
        routes = f"server: {{data: '{folder}'}}\nbackends: {{a: {{url: 'http://127.0.0.1:1'}}}}"
        async with running_gateway(routes) as gateway:
            assert (await gateway.client.get("/health")).status_code == 200, name
            assert (await gateway.client.get("/metrics")).status_code == 200, name
            assert (await gateway.client.get("/status/usage")).status_code == 200, name


async def test_a_mistyped_row_is_told_by_a_gateway_that_starts_with_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    change(path, "UPDATE spent SET usd = 'abc', day = 'x' WHERE client = 'x'")
    routes = (
        f"server: {{data: '{tmp_path}'}}\n"
        "backends: {cloud: {url: 'http://127.0.0.1:1', engine: openai, cloud: true, model: m, budget: 5 USD/day,"
        " price: {input: 1, output: 1}}}"
    )
    async with running_gateway(routes) as gateway:
        assert gateway.metric("gateway_records_lost_total", kind="ledger") == 1.0
        assert gateway.metric("gateway_internal_failures_total", part="ledger") == 1.0
        assert gateway.metric("gateway_budget_spent_ratio", budget="cloud") == pytest.approx(1.0)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([c for c, _ in ODD]), st.sampled_from([v for _, v in ODD])), max_size=4))
def test_no_row_is_a_reason_not_to_start(changes: list[tuple[str, Any]]) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = written(Path(folder))
        for column, odd in changes:
            change(path, f"UPDATE OR IGNORE spent SET {column} = ? WHERE client = 'x'", odd)
        found = {(backend, client): usd for _, backend, client, usd in read_spent(path, TODAY)[0]}
        assert found["cloud", "y"] == 3.0
        assert read_spent(path, TODAY + 1)[0] == []


def test_logs_are_quiet_about_a_good_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    written(tmp_path)
    assert len(opened(tmp_path)[1]) == 2
    assert not caplog.records
    assert Entry.__struct_fields__[-1] == "audio_out_seconds"


@pytest.mark.parametrize("count", [0, 1, TOGETHER - 1, TOGETHER, TOGETHER + 1, 2 * TOGETHER, 5 * TOGETHER + 3])
def test_however_many_entries_are_written_at_once_each_has_its_row(tmp_path: Path, count: int) -> None:
    entries = [entry(1000.0 + number, backend=f"b{number}") for number in range(count)]
    file = LedgerFile(tmp_path / NAME)
    file.write(entries)
    file.close()
    with closing(sqlite3.connect(tmp_path / NAME)) as connection:
        rows = connection.execute("SELECT at, span, client, alias, backend, usd FROM usage ORDER BY at").fetchall()
    assert rows == [(e.at, 0, e.client, e.alias, e.backend, e.usd) for e in entries]


def test_of_many_entries_of_which_one_is_unfit_none_is_written(tmp_path: Path) -> None:
    entries = [entry(1000.0 + number) for number in range(3 * TOGETHER)]
    file = LedgerFile(tmp_path / NAME)
    file.write(entries[:1])
    with pytest.raises(sqlite3.IntegrityError):
        file.write([*entries, replace(entry(2000.0), alias=None)])
    file.close()
    with closing(sqlite3.connect(tmp_path / NAME)) as connection:
        assert connection.execute("SELECT count(*) FROM usage").fetchone() == (1,)
