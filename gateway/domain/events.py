"""Events that the page, `/events` and alerts show: what happened to backends and to routes.yaml; and their readers, who
may be slow: each has a bounded queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

KEPT = 1000  # events that are kept
QUEUE_MOST = 100  # events in the queue of one reader


@dataclass(frozen=True, slots=True)
class Event:
    """`at`: Unix seconds. `kind` state: `before` and `after` are values of `State`, `reason` the evidence. `kind`
    drift: the backend differs from what routes.yaml declares; `reason` says how, empty = it no longer does. `kind`
    config: routes.yaml was read again; `after` is "taken" or "refused", `reason` what changed or what is wrong. `kind`
    shared: this gateway joined the others or continues without them; `backend` is empty. `kind` mode: another mode is
    in force; `before` and `after` are names of modes ("" = routes.yaml has none), `backend` is empty. `kind` operation:
    a step of a switch, a start or a stop, or with an empty `backend` the whole of it; `after` is how far it is,
    `reason` what."""

    at: float
    kind: Literal["state", "drift", "config", "shared", "mode", "operation"]
    backend: str
    reason: str
    before: str = ""
    after: str = ""


Listeners = list[Callable[[Event], None]]


class Subscription:
    """Collects events while its context is open. When the queue is full the oldest are dropped, and counted."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._queue: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self.dropped = 0  # since the last `drain`

    def __enter__(self) -> Subscription:
        self._listeners.append(self.put)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):
            self._listeners.remove(self.put)

    def put(self, event: Event) -> None:
        if len(self._queue) >= QUEUE_MOST:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        self._arrived.set()

    def drain(self) -> tuple[list[Event], int]:
        """(the events since the last call, how many were dropped before them)."""
        events, dropped = list(self._queue), self.dropped
        self._queue.clear()
        self.dropped = 0
        self._arrived.clear()
        return events, dropped

    async def wait(self, seconds: float) -> None:
        """Until an event has arrived, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
