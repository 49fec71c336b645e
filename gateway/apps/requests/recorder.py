"""The last requests off the request path: their lines are queued, and a thread writes them to the store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.accounting.queued_writer import QueuedWriter
from gateway.accounting.record import RequestLine, is_failure
from gateway.apps.requests.store import RequestStore, Search
from gateway.supervision import Failures

REASON_MOST = 500  # characters of a reason or message

_encode = msgspec.json.Encoder().encode


class Recorder(QueuedWriter[RequestLine]):
    """In a long burst the oldest that wait are dropped, so that requests have the CPU."""

    part, file = "requests", "the store of requests"
    flush = 1.0
    kept = 10_000
    at_once = 1_000

    def __init__(self, store: RequestStore, failures: Failures) -> None:
        super().__init__(store.path, failures)
        self._store = store

    def store(self, records: Sequence[RequestLine]) -> None:
        self._store.write(map(_row, records), time.time())

    def close_file(self) -> None:
        self._store.close()

    def find(self, search: Search) -> list[dict[str, Any]]:
        """With those that have just ended. Blocks. Raises sqlite3.Error, OSError."""
        with self._using:
            self.write(self.kept)
            return self._store.find(search)


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
