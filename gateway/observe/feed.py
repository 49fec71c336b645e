"""Events as they happen, for readers that may be slow: each has a queue of its own, which never grows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gateway.domain.events import Event

QUEUE_MOST = 100  # events that wait for one reader

Listeners = list[Callable[[Event], None]]


class Subscription:
    """A context in which events are collected. Of too many the oldest are dropped, and counted."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._queue: deque[Event] = deque()
        self._news = asyncio.Event()
        self.dropped = 0  # since `take` was last called

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
        self._news.set()

    def take(self) -> tuple[list[Event], int]:
        """What has come since the last call, and how many before that were dropped."""
        events, dropped = list(self._queue), self.dropped
        self._queue.clear()
        self.dropped = 0
        self._news.clear()
        return events, dropped

    async def wait(self, seconds: float) -> None:
        """Until something has come, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
