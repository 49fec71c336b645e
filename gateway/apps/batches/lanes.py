"""How many lines of batches run at a time: for each alias as many as its backends have slots. Lines wait in the order
in which they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from gateway.admission.capacity import capacity
from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState

MOST = 256  # lines of one alias at a time


def lines_at_a_time(alias: Alias, states: Mapping[str, BackendState], now: float) -> int:
    """As many as the usable backends of the alias have slots, at least one: that one finds out when they return.
    Pure."""
    usable = [states[name] for step in alias.steps for name in step if name in states]
    slots = sum(capacity(state) for state in usable if state.health.usable(now))
    return max(1, min(MOST, slots))


class Lanes:
    """The lines under way, by alias. `limit` gives the most of one alias."""

    def __init__(self, limit: Callable[[str], int]) -> None:
        self._limit = limit
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def one_of(self, alias: str) -> AsyncIterator[None]:
        """Wait for a place in the lane of this alias, and hold it."""
        waiting = self._waiting.setdefault(alias, deque())
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._admit(alias)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(alias)
            raise
        try:
            yield
        finally:
            self._release(alias)

    def _release(self, alias: str) -> None:
        self._running[alias] -= 1
        self._admit(alias)

    def _admit(self, alias: str) -> None:
        waiting = self._waiting[alias]
        while waiting and self._running.get(alias, 0) < self._limit(alias):
            turn = waiting.popleft()
            if not turn.done():  # else its line was cancelled while it waited
                self._running[alias] = self._running.get(alias, 0) + 1
                turn.set_result(None)
