"""The requests of one gateway: those that run, read from their records when somebody looks, and the past ones where
`server.requests` keeps them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.apps.requests.capture import Capture
from gateway.apps.requests.store import CapturedRequest, CapturedStore, Recorder, RequestStore, Search
from gateway.domain.prefill import Turns
from gateway.errors import GatewayError
from gateway.proxy.active import ActiveRequest, ActiveRequests
from gateway.runtime.gateway import Gateway

SHOWN_MOST = 500  # of one answer
MEASURED = 0.5  # seconds at least between the two looks that a speed is made of


class Requests:
    """The requests of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        server = gateway.snapshot.server
        self._settings = settings = server.requests
        self._observers = gateway.services.line_observers
        self.running = RunningRequests(gateway.active)
        store = RequestStore(Path(server.data), settings.keep, settings.days)
        self.searches = Turns(1)
        self.capture = Capture(gateway, self._keep)
        self.captured = CapturedStore(Path(server.data))
        self._failures = gateway.metrics.failures
        self._keeping: set[asyncio.Task[Any]] = set()
        self._recorder = Recorder(store, gateway.metrics.failures) if settings.keep else None

    async def open(self) -> None:
        await asyncio.to_thread(self.captured.drop_old, time.time())
        if self._recorder is not None:
            self._recorder.start()
            self._observers.append(self._recorder.put)

    async def close(self) -> None:
        self.capture.end()
        if self._keeping:
            await asyncio.wait(self._keeping)
        await asyncio.to_thread(self.captured.close)
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)

    def _keep(self, one: CapturedRequest) -> None:
        task = self._failures.once("requests", asyncio.to_thread(self.captured.add, one), f"keeping {one.id}")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    def find(self, search: Search) -> list[dict[str, Any]]:
        """Blocks. Raises sqlite3.Error, OSError."""
        return self._recorder.find(search) if self._recorder is not None else []

    def kept(self) -> dict[str, int]:
        """What is kept, and how many could not be."""
        return {"keep": self._settings.keep, "days": self._settings.days, "lost": self.lost()["requests"]}

    def lost(self) -> dict[str, int]:
        return {"requests": self._recorder.lost if self._recorder is not None else 0}


class RunningRequests:
    """Looks at the requests of one gateway. A speed is that between two looks."""

    def __init__(self, active: ActiveRequests) -> None:
        self._active = active
        self._looks: dict[ActiveRequest, tuple[float, int, float | None]] = {}  # -> when, tokens, a second

    def rows(self, client: str | None, id: str = "") -> list[dict[str, Any]]:
        """Those of this client (None: of all), the oldest first. `id`: its beginning."""
        requests = list(self._active)
        for ended in self._looks.keys() - set(requests):
            del self._looks[ended]
        found = [one for one in requests if _is(one, client, id)]
        found.sort(key=lambda one: one.record.began)
        return [self._row(one) for one in found[:SHOWN_MOST]]

    def cancel(self, client: str | None, id: str) -> int:
        """End all with this id; returns how many there were. Their clients get `request_cancelled`."""
        found = [one for one in self._active if one.record.id == id and _is(one, client, id)]
        for one in found:
            one.timer.interrupt(GatewayError("request_cancelled", "This request was cancelled by an operator."))
        return len(found)

    def _row(self, one: ActiveRequest) -> dict[str, Any]:
        record, timer = one.record, one.timer
        trying, request, now = record.trying, record.request, timer.now()
        track = trying.track if trying is not None else None
        tokens = track.output_tokens(trying.state.ratio.probably) if track is not None and trying is not None else 0
        if request is None:
            phase = "reading the request"
        elif trying is None:
            phase = "waiting for a slot"
        elif trying.first_token:
            phase = "writing"
        else:
            phase = "thinking" if tokens else "reading the prompt" if request.stream else "working"
        return {
            "id": record.id,
            "client": record.client_label,
            "alias": record.alias,
            "endpoint": record.endpoint.name,
            "stream": request is not None and request.stream,
            "backend": trying.state.name if trying is not None else "",
            "attempts": len(record.attempts),
            "left": [{"backend": one.backend, "kind": one.kind} for one in record.tried],
            "began": round(time.time() - (now - record.began), 3),
            "total_ms": round((now - record.began) * 1000),
            "phase": phase,
            "tokens_out": tokens,
            "tokens_per_s": self._speed(one, now, tokens),
        }

    def _speed(self, one: ActiveRequest, now: float, tokens: int) -> float | None:
        at, before, speed = self._looks.get(one, (0.0, 0, None))
        if not at or now - at >= MEASURED:
            speed = round((tokens - before) / (now - at), 1) if at and tokens > before else None
            self._looks[one] = (now, tokens, speed)
        return speed


def _is(one: ActiveRequest, client: str | None, id: str) -> bool:
    return client in (None, one.record.client_label) and one.record.id.startswith(id)


def matches(row: Mapping[str, Any], words: str) -> bool:
    """Does the search for these words find the row, as `Search.words` finds a past one?"""
    return row["id"].startswith(words) or any(words in row[name] for name in ("client", "alias", "backend"))
