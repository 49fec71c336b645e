"""The usage ledger off the request path: what has ended is queued, and written by a thread of its own.

`kill -9` loses what came since the last write: at most a second. When the file cannot be written, requests go on, the
log says so once, and the newest entries are kept until it can.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from pathlib import Path

from gateway.admission.budgets import LONGEST
from gateway.observe.ledger_file import DAY, NAME, Entry, LedgerFile, spent_since

log = logging.getLogger("gateway.ledger")

FLUSH = 0.5  # seconds from an entry to its write
KEPT = 50_000  # entries that wait while the file cannot be written
RETRY_MOST = 30.0  # seconds between two tries
FOLD_EVERY = 3600.0


class Ledger:
    """`record` is for the event loop's thread and never waits."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.lost = 0  # entries that were given up
        self._queue: deque[Entry] = deque(maxlen=KEPT)
        self._held: list[Entry] = []  # taken from the queue, not written yet; the thread's
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pause = FLUSH
        self._fold_at = 0.0

    def record(self, entry: Entry) -> None:
        if len(self._queue) == KEPT:
            self.lost += 1
        self._queue.append(entry)
        if not self._wake.is_set():
            self._wake.set()

    def open(self) -> list[tuple[int, str, str, float]]:
        """Start writing. Returns what was spent in the last days, as (day, backend, client, USD); blocks while it is
        read."""
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()
        try:
            return spent_since(self.path, int(time.time() // DAY) - LONGEST)
        except (sqlite3.Error, OSError) as error:
            log.error("what was spent before cannot be read from %s (%s): budgets begin anew", self.path, error)
            return []

    def close(self) -> None:
        """Write what is left and end; gives up after some seconds."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(10.0)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        file = LedgerFile(self.path)
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(self._pause)
            self._wake.clear()
            self._write(file)
        file.close()

    def _write(self, file: LedgerFile) -> None:
        while self._queue:
            self._held.append(self._queue.popleft())
        if len(self._held) > KEPT:
            self.lost += len(self._held) - KEPT
            del self._held[:-KEPT]
        if not self._held:
            return
        try:
            file.write(self._held)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return
        self._held.clear()
        if self._pause != FLUSH:
            log.info("the usage ledger %s is written again; entries lost: %d", self.path, self.lost)
            self._pause = FLUSH
        self._fold(file)

    def _failed(self, error: Exception) -> None:
        if self._pause == FLUSH:
            log.error(
                "the usage ledger %s cannot be written (%s): requests go on, the newest %d are kept until it can",
                *(self.path, error, KEPT),
            )
        self._pause = min(self._pause * 2.0, RETRY_MOST)
        self._wake.set()  # what is held is tried again

    def _fold(self, file: LedgerFile) -> None:
        now = time.monotonic()
        if now < self._fold_at:
            return
        self._fold_at = now + FOLD_EVERY
        try:
            file.fold(time.time())
        except (sqlite3.Error, OSError) as error:
            log.warning("old entries of the usage ledger %s stay as they are for now: %s", self.path, error)
