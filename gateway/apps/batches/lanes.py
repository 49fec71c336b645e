"""How many lines of batches run at a time, for each alias as many as its backends have slots; and how quickly they go
on. Times are passed in, as seconds of any clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from gateway.admission.capacity import capacity
from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState

MOST = 256  # lines of one alias at a time
LONGEST = 60.0  # seconds that a rate looks back
APART = 1.0  # seconds between two samples


def lines_at_a_time(alias: Alias, states: Mapping[str, BackendState], now: float) -> int:
    """As many as the usable backends of the alias have slots, at least one: that one finds out when they return.
    Pure."""
    usable = [states[name] for step in alias.steps for name in step if name in states]
    slots = sum(capacity(state) for state in usable if state.health.usable(now))
    return max(1, min(MOST, slots))


class Lanes:
    """The lines under way, by alias; further ones wait in the order in which they come. `limit` gives the most of one
    alias."""

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


class BatchProgress:
    """Samples of how many lines are done, by all gateways together."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, done: int, now: float) -> None:
        """`done` lines are done at the time `now`."""
        samples = self._samples
        if not samples or now - samples[-1][0] >= APART:
            samples.append((now, done))
        while len(samples) > 1 and samples[1][0] <= now - LONGEST:
            samples.popleft()

    def rate(self, done: int, now: float) -> float | None:
        """Lines per second over the last minute; None until two samples are there."""
        since = next(((at, before) for at, before in self._samples if at > now - LONGEST), None)
        if since is None or now - since[0] < APART:
            return None
        return (done - since[1]) / (now - since[0])
