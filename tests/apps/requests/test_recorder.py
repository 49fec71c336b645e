"""The last requests are written in batches off the request path; what cannot be written is counted."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.accounting.record import RequestLine
from gateway.apps.requests.store import DAY, NAME, Recorder, RequestStore, Search
from gateway.domain.tokens import NO_TOKENS
from gateway.metrics.registry import Metrics
from tests.waiting import wait_until

NOW = 1_900_000_000.0  # Unix seconds
LINE = RequestLine(NOW, "r", "hermes", "writer", "chat", False, "a", 1, "200", None, (), (), NO_TOKENS, 0.0, None, 1.0)


def line(id: str, **more: Any) -> RequestLine:
    return replace(LINE, id=id, **more)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def recorder(tmp_path: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setattr(Recorder, "flush", 0.01)
    monkeypatch.setattr(Recorder, "retry_most", 0.05)
    monkeypatch.setattr("gateway.sqlite_file.BUSY", 0.05)
    recorder = Recorder(RequestStore(tmp_path, keep=10_000, days=7), metrics.failures)
    recorder.start()
    yield recorder
    recorder.close()


def ids(recorder: Recorder, **search: Any) -> list[str]:
    return [one["id"] for one in recorder.find(Search(**search))]


def written(folder: Path) -> list[str]:
    connection = sqlite3.connect(folder / NAME)
    try:
        return [id for (id,) in connection.execute("SELECT id FROM requests ORDER BY rowid")]
    finally:
        connection.close()


def test_a_request_is_found_at_once_and_written_without_being_asked_for(recorder: Recorder, tmp_path: Path) -> None:
    recorder.put(line("r1"))
    recorder.put(line("r2"))
    assert ids(recorder) == ["r2", "r1"]
    recorder.put(line("r3"))
    wait_until(lambda: written(tmp_path) == ["r1", "r2", "r3"], 20)
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0


def test_what_waits_is_written_at_the_end(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "at_once", 1)
    for number in range(20):
        recorder.put(line(f"r{number}"))
    recorder.close()
    assert len(written(tmp_path)) == 20
    assert recorder.lost == 0


def test_a_burst_drops_the_oldest_and_counts_them(tmp_path: Path, metrics: Metrics) -> None:
    recorder = Recorder(RequestStore(tmp_path, keep=20_000, days=7), metrics.failures)  # its thread does not run
    for number in range(Recorder.kept + 5):
        recorder.put(line(f"r{number}"))
    assert recorder.lost == 5
    recorder.find(Search())
    assert written(tmp_path) == [f"r{number}" for number in range(5, Recorder.kept + 5)]


def test_while_the_file_cannot_be_written_the_newest_are_held(
    recorder: Recorder, tmp_path: Path, metrics: Metrics
) -> None:
    recorder.put(line("r1"))
    recorder.find(Search())
    blocker = sqlite3.connect(tmp_path / NAME, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")
    try:
        recorder.put(line("r2"))
        failures = metrics.internal_failures.child("requests")
        wait_until(lambda: failures.value > 0, 20)
        recorder.put(line("r3"))
    finally:
        blocker.execute("ROLLBACK")
        blocker.close()
    wait_until(lambda: written(tmp_path) == ["r1", "r2", "r3"], 20)
    assert recorder.lost == 0


def test_a_request_that_cannot_be_stored_costs_no_other(recorder: Recorder) -> None:
    recorder.put(line("r1"))
    recorder.put(line("r2", error="\ud800"))
    recorder.put(line("r3"))
    assert ids(recorder) == ["r3", "r1"]
    assert recorder.lost == 1


def test_too_many_and_too_old_give_way(tmp_path: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.apps.requests.store.time.time", lambda: NOW)
    recorder = Recorder(RequestStore(tmp_path, keep=3, days=7), metrics.failures)
    for number in range(5):
        recorder.put(line(f"r{number}"))
    assert ids(recorder) == ["r4", "r3", "r2"]
    monkeypatch.setattr("gateway.apps.requests.store.time.time", lambda: NOW + 8 * DAY)
    for number in range(5, 8):
        recorder.put(line(f"r{number}", at=NOW + (8 if number == 7 else 0) * DAY))
    assert ids(recorder) == ["r7"]


def test_requests_are_searched(recorder: Recorder) -> None:
    recorder.put(line("abc1", client="webui"))
    recorder.put(line("abc2", outcome="upstream_error", alias="coder"))
    recorder.put(line("a%", outcome="client_gone"))
    assert ids(recorder, id="abc") == ["abc2", "abc1"]
    assert ids(recorder, id="a%") == ["a%"]
    assert ids(recorder, equal={"client": "hermes", "alias": "writer"}) == ["a%"]
    assert ids(recorder, failed=True) == ["abc2"]
    assert ids(recorder, equal={"outcome": "client_gone"}) == ["a%"]
    newest = recorder.find(Search(most=1))[0]
    assert ids(recorder, before=newest["number"], most=1) == ["abc2"]
    assert ids(recorder, after=newest["number"] - 2) == ["abc2", "a%"]


def test_putting_never_waits_for_the_file(recorder: Recorder) -> None:
    with recorder._using:
        putting = threading.Thread(target=recorder.put, args=(line("r1"),))
        putting.start()
        putting.join(20)
        assert not putting.is_alive()
    assert ids(recorder) == ["r1"]
