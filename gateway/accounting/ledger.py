"""The usage ledger off the request path: entries are queued, and a thread writes them to the file."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.accounting.budgets import LONGEST
from gateway.accounting.ledger_file import DAY, NAME, Entry, LedgerFile, SpentRow, read_spent
from gateway.accounting.queued_writer import QueuedWriter
from gateway.supervision import Failures

log = logging.getLogger("gateway.ledger")

FOLD_EVERY = 3600.0


class Ledger(QueuedWriter[Entry]):
    """`lost` counts unreadable rows of the file too."""

    part, file = "ledger", "the usage ledger"

    def __init__(self, folder: Path, failures: Failures | None = None) -> None:
        super().__init__(folder / NAME, failures)
        self._file = LedgerFile(self.path)
        self._fold_at = 0.0

    def open(self) -> list[SpentRow]:
        """Start writing. Returns the spending of the last days. Blocks while the file is read."""
        self.start()
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
        try:
            with self._using:
                self._file.repair(rows)
        except (sqlite3.Error, OSError) as error:
            log.warning("they stay in the file for now: %s", error)

    def close_file(self) -> None:
        self._file.close()

    def store(self, records: Sequence[Entry]) -> None:
        self._file.write(records)
        now = time.monotonic()
        if now < self._fold_at:
            return
        self._fold_at = now + FOLD_EVERY
        try:
            self._file.fold(time.time())
        except (sqlite3.Error, OSError) as error:
            log.warning("old entries of the usage ledger %s stay as they are for now: %s", self.path, error)
