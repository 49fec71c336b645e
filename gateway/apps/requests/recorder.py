"""The last requests off the request path: their lines are queued, and a thread writes them to the store."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from typing import Any

import msgspec

from gateway.accounting.ledger import UNFIT
from gateway.accounting.record import RequestLine, is_failure
from gateway.apps.requests.store import RequestStore, Search
from gateway.supervision import Failures

log = logging.getLogger("gateway.apps.requests")

FLUSH = 1.0  # seconds until a line is written
KEPT = 10_000  # lines that wait, in a burst or while the file cannot be written
AT_ONCE = 1_000  # lines of one write: in a long burst the oldest that wait are dropped, so that requests have the CPU
RETRY_MOST = 30.0  # seconds between two tries
REASON_MOST = 500  # characters of a reason or message

_encode = msgspec.json.Encoder().encode


class Recorder:
    """`put` is for the event loop's thread and never waits; `find` blocks. `lost`: lines that were dropped."""

    def __init__(self, store: RequestStore, failures: Failures) -> None:
        self.lost = 0
        self._store = store
        self._failures = failures
        self._queue: deque[RequestLine] = deque(maxlen=KEPT)
        self._held: list[RequestLine] = []  # taken from the queue, not written yet
        self._using = threading.Lock()  # for the store and what is held
        self._wake = threading.Event()
        self._awake = False  # it is set; asking it costs more
        self._stop = threading.Event()
        self._thread = failures.thread("requests", self._run, self._stop)
        self._pause = FLUSH

    def open(self) -> None:
        self._thread.start()

    def put(self, line: RequestLine) -> None:
        if len(self._queue) == KEPT:
            self.lost += 1
        self._queue.append(line)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def find(self, search: Search) -> list[dict[str, Any]]:
        """With those that have just ended. Raises sqlite3.Error, OSError."""
        with self._using:
            self._write(KEPT)
            return self._store.find(search)

    def close(self) -> None:
        """Write the remaining lines; gives up after some seconds."""
        self._stop.set()
        self._wake.set()
        self._thread.join(10.0)
        if left := len(self._held) + len(self._queue):
            self.lost += left
            log.error("%d of the last requests could not be written to %s", left, self._store.path)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(self._pause)
            self._wake.clear()
            self._awake = False  # before the queue is looked at
            with self._using:
                try:
                    self._write(KEPT if self._stop.is_set() else AT_ONCE)
                    self._pause = FLUSH
                except (sqlite3.Error, OSError) as error:
                    self._failed(error)
            if self._held or self._queue:
                self._wake.set()
        with self._using:
            self._store.close()

    def _write(self, most: int) -> None:
        """Write the oldest lines that wait. Raises if nothing can be written now; then they are held."""
        held = self._held
        held += [self._queue.popleft() for _ in range(min(most - len(held), len(self._queue)))]
        if not held:
            return
        try:
            self._store.write(map(_row, held), time.time())
        except sqlite3.OperationalError:
            raise
        except UNFIT:
            self._write_each()
        held.clear()

    def _write_each(self) -> None:
        """One of the lines that are held cannot be stored: the others are."""
        while self._held:
            try:
                self._store.write([_row(self._held[0])], time.time())
            except sqlite3.OperationalError:
                raise
            except UNFIT:
                self.lost += 1
                self._failures.count("requests")
            del self._held[0]

    def _failed(self, error: Exception) -> None:
        self._store.close()
        if self._pause == FLUSH:
            self._failures.count("requests")
            log.error("%s cannot be written (%s): the newest requests are kept until it can", self._store.path, error)
        self._pause = min(self._pause * 2.0, RETRY_MOST)


# -- a line as it is kept ---------------------------------------------------------------------------------------------


def past_request(line: RequestLine) -> dict[str, Any]:
    """The fields of the log's line (docs/logs.md), and why: `left` has the reason of each failed attempt, `skipped`
    that of each backend that could not serve, `error` is the message that the client got. `at`: Unix seconds of its
    end. `usd`: None where the cost is not known. What has nothing to say is left out."""
    past = {"at": round(line.at, 3), **line.shown()}
    past |= {} if line.usd == 0.0 else {"usd": None if line.usd is None else round(line.usd, 6)}
    further = {
        "mended": sorted(line.mended),
        "left_out": line.left_out,
        "left": [{"backend": one.backend, "kind": one.kind, "reason": one.reason[:REASON_MOST]} for one in line.left],
        "skipped": [{"backend": name, "reason": reason[:REASON_MOST]} for name, reason in line.skipped],
        "translated": line.translated,
        "local_only": line.local_only,
        "error": line.error[:REASON_MOST],
        "failed": is_failure(line.outcome),
    }
    return past | {name: value for name, value in further.items() if value}


def _row(line: RequestLine) -> tuple[Any, ...]:
    """The row of the table (store.py)."""
    past = past_request(line)
    columns = (past[name] for name in ("at", "id", "client", "alias", "backend", "outcome"))
    return *columns, past.get("failed", False), _encode(past)
