"""Events for readers that may be slow: each reader has a bounded queue of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gateway.domain.events import Event

QUEUE_MOST = 100  # events in the queue of one reader

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
