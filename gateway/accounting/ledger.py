"""The usage ledger off the request path: entries are queued, and a thread writes them to the file.

`kill -9` loses the entries since the last write, at most a second. While the file cannot be written, requests go on,
the error is logged once, and the newest entries are kept. A single entry that cannot be stored is set aside, so that
no other entry is lost.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from pathlib import Path

from gateway.accounting.budgets import LONGEST
from gateway.accounting.ledger_file import DAY, NAME, Entry, LedgerFile, SpentRow, read_spent
from gateway.supervision import Failures

log = logging.getLogger("gateway.ledger")

FLUSH = 0.5  # seconds until an entry is written
KEPT = 50_000  # entries that wait while the file cannot be written
RETRY_MOST = 30.0  # seconds between two tries
FOLD_EVERY = 3600.0
# Errors that mean that this one entry cannot be stored. (Any other error means that nothing can be stored for now.)
UNFIT = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    TypeError,
    ValueError,
)


class Ledger:
    """`record` is for the event loop's thread and never waits."""

    def __init__(self, folder: Path, failures: Failures | None = None) -> None:
        self.path = folder / NAME
        self.lost = 0  # dropped entries, and unreadable rows of the file
        self._failures = failures or Failures()
        self._queue: deque[Entry] = deque(maxlen=KEPT)
        self._held: list[Entry] = []  # taken from the queue, not written yet; used by the thread only
        self._wake = threading.Event()
        self._awake = False  # it is set; asking it costs more
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pause = FLUSH
        self._fold_at = 0.0

    def record(self, entry: Entry) -> None:
        if len(self._queue) == KEPT:
            self.lost += 1
        self._queue.append(entry)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def open(self) -> list[SpentRow]:
        """Start writing. Returns the spending of the last days. Blocks while the file is read."""
        self._thread = self._failures.thread("ledger", self._run, self._stop)
        self._thread.start()
        try:
            rows, unreadable = read_spent(self.path, int(time.time() // DAY) - LONGEST)
        except (sqlite3.Error, OSError) as error:
            log.error("the spending so far cannot be read from %s (%s): budgets start at zero", self.path, error)
            self._failures.count("ledger")
            return []
        except Exception:
            self._failures.note("ledger", f"reading what was spent before from {self.path}")
            return []
        if unreadable:
            self._set_aside(rows, unreadable)
        return rows

    def _set_aside(self, rows: list[SpentRow], unreadable: int) -> None:
        log.error(
            "%d rows of what was spent in the usage ledger %s cannot be read: they are set aside, and budgets count "
            "what the requests in it have cost",
            *(unreadable, self.path),
        )
        self.lost += unreadable
        self._failures.count("ledger")
        file = LedgerFile(self.path)
        try:
            file.repair(rows)
        except (sqlite3.Error, OSError) as error:
            log.warning("they stay in the file for now: %s", error)
        finally:
            file.close()

    def close(self) -> None:
        """Write the remaining entries and stop; gives up after some seconds."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(10.0)
        if unwritten := len(self._held) + len(self._queue):
            self.lost += unwritten
            log.error("the usage ledger %s could not be written until the end; entries lost: %d", self.path, self.lost)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        file = LedgerFile(self.path)
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(self._pause)
            self._wake.clear()
            self._awake = False  # before the queue is looked at
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
            self._write_held(file)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return
        self._held.clear()
        if self._pause != FLUSH:
            log.info("the usage ledger %s is written again; entries lost: %d", self.path, self.lost)
            self._pause = FLUSH
        self._fold(file)

    def _write_held(self, file: LedgerFile) -> None:
        """Write all entries that are held; an entry that cannot be stored is set aside. Raises if nothing can be
        written now."""
        try:
            file.write(self._held)
        except sqlite3.OperationalError:
            raise
        except UNFIT as error:
            refused = 0
            while self._held:
                try:
                    file.write(self._held[:1])
                except sqlite3.OperationalError:
                    raise
                except UNFIT:
                    refused += 1
                del self._held[0]
            self.lost += refused
            if refused:
                log.error("the usage ledger %s does not take %d entries (%s): set aside", self.path, refused, error)
                self._failures.count("ledger")

    def _failed(self, error: Exception) -> None:
        if self._pause == FLUSH:
            self._failures.count("ledger")
            log.error(
                "the usage ledger %s cannot be written (%s): requests go on, the newest %d are kept until it can",
                *(self.path, error, KEPT),
            )
        self._pause = min(self._pause * 2.0, RETRY_MOST)
        self._wake.set()  # try the held entries again

    def _fold(self, file: LedgerFile) -> None:
        now = time.monotonic()
        if now < self._fold_at:
            return
        self._fold_at = now + FOLD_EVERY
        try:
            file.fold(time.time())
        except (sqlite3.Error, OSError) as error:
            log.warning("old entries of the usage ledger %s stay as they are for now: %s", self.path, error)
