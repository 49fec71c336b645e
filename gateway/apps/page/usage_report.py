"""Usage by client, today and in the last week: sums of the ledger, for `/status/usage` and `gateway usage`."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.accounting.ledger_file import DAY, Sums, sums_since
from gateway.supervision import Failures

FRESH = 15.0  # seconds for which all readers get the same sums
WEEK = 7 * DAY


class UsageReport:
    """Sums up the ledger in a thread, at most once in FRESH seconds."""

    def __init__(self, ledger: Path, failures: Failures | None = None) -> None:
        self._ledger = ledger
        self._failures = failures or Failures()
        self._reading: asyncio.Task[dict[str, Any]] | None = None
        self._read_at = float("-inf")

    async def read(self) -> dict[str, Any]:
        """`{at, today: {since, clients: [...]}, week: {...}, error}`; Unix seconds, days in UTC like budgets'."""
        now = time.monotonic()
        if self._reading is None or (self._reading.done() and now - self._read_at >= FRESH):
            self._read_at = now
            self._reading = asyncio.create_task(asyncio.to_thread(self._sums, time.time()))
        return await asyncio.shield(self._reading)

    def _sums(self, now: float) -> dict[str, Any]:
        starts = {"today": now - now % DAY, "week": now - WEEK}
        report: dict[str, Any] = {"at": round(now, 3), "error": None}
        for name, since in starts.items():
            try:
                sums = sums_since(self._ledger, since, ("client",)) if self._ledger.is_file() else []
            except (sqlite3.Error, OSError) as error:
                sums, report["error"] = [], f"the usage ledger cannot be read: {error}"
            except Exception:
                self._failures.note("usage", "reading the usage ledger")
                sums, report["error"] = [], "the usage ledger cannot be read; see the gateway's log"
            report[name] = {"since": since, "clients": [row_json(("client",), row) for row in sums]}
        return report


def row_json(groups: Sequence[str], row: Sums) -> dict[str, Any]:
    """The sums of one group as JSON, with a key for each of `groups`. `usd` lacks the `unpriced` answers; it is null
    when no answer has a price."""
    fields = {**dict(zip(groups, row.group, strict=True)), **row._asdict()}
    del fields["group"]
    for name in ("audio_in_seconds", "audio_out_seconds"):
        fields[name] = round(fields[name], 3)
    fields["usd"] = None if row.unpriced and not row.usd else round(row.usd, 6)
    return fields
