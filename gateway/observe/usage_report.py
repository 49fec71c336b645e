"""Who has used what today and in the last week: the ledger's sums, for people who look."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

from gateway.accounting.ledger_file import DAY, Sums, sums_since
from gateway.supervision import Failures

KEPT = 15.0  # seconds that an answer is good for: many who look cost as much as one
WEEK = 7 * DAY


class Usage:
    """Reads the ledger in a thread, at most once in KEPT seconds."""

    def __init__(self, ledger: Path, failures: Failures | None = None) -> None:
        self._ledger = ledger
        self._failures = failures or Failures()
        self._reading: asyncio.Task[dict[str, Any]] | None = None
        self._read_at = float("-inf")

    async def told(self) -> dict[str, Any]:
        """`{at, today: {since, clients: [...]}, week: {...}, error}`; the day is UTC's, as that of budgets."""
        now = time.monotonic()
        if self._reading is None or (self._reading.done() and now - self._read_at >= KEPT):
            self._read_at = now
            self._reading = asyncio.create_task(asyncio.to_thread(self._read, time.time()))
        return await asyncio.shield(self._reading)

    def _read(self, now: float) -> dict[str, Any]:
        starts = {"today": now - now % DAY, "week": now - WEEK}
        told: dict[str, Any] = {"at": round(now, 3), "error": None}
        for name, since in starts.items():
            try:
                sums = sums_since(self._ledger, since, ("client",)) if self._ledger.is_file() else []
            except (sqlite3.Error, OSError) as error:
                sums, told["error"] = [], f"the usage ledger cannot be read: {error}"
            except Exception:
                self._failures.note("usage", "reading the usage ledger")
                sums, told["error"] = [], "the usage ledger cannot be read; see the gateway's log"
            told[name] = {"since": since, "clients": [_row(row) for row in sums]}
        return told


def _row(row: Sums) -> dict[str, Any]:
    """`usd` null = nothing of it is known; `unpriced` answers are missing in it."""
    told = {"client": row.group[0], **row._asdict()}
    del told["group"]
    told["usd"] = None if row.unpriced and not row.usd else round(row.usd, 6)
    return told
