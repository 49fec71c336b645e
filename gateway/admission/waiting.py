"""The waiting set at work: its timer, and requests that wait in it."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from gateway.admission.lease import Lease
from gateway.admission.scheduler import Scheduler
from gateway.admission.waiter import Waiter
from gateway.domain.backend import BackendState
from gateway.domain.request import InferenceRequest
from gateway.metrics.registry import Metrics
from gateway.routing.plan import Candidate

log = logging.getLogger("gateway.admission")

TICK = 0.05  # seconds; the timer runs only while somebody waits


class Admission:
    """The one waiting set of a gateway. Whoever changes a backend may say so with `changed`; it is seen within a tick
    anyway."""

    def __init__(self, metrics: Metrics) -> None:
        self.scheduler = Scheduler()
        self.seconds = metrics.queue_seconds.child()
        self._timer: asyncio.TimerHandle | None = None

    def at_once(
        self,
        candidate: Candidate,
        request: InferenceRequest,
        client: str = "",
        limit: int | None = None,
        *,
        asks: bool = False,
    ) -> Lease | None:
        """A lease, if there is room and nobody waits for this backend. `asks`: it has to be counted by others, too."""
        if asks and not self.scheduler.serves:
            return None
        held = self.scheduler.at_once(candidate.state, request.choices, time.monotonic(), client, limit)
        if held is None:
            return None
        self.seconds.observe(0.0)
        return Lease(self.scheduler, candidate, held, request)

    async def wait(self, waiter: Waiter) -> float:
        """Until the waiter has got its slots, its time is up, or nothing is left to wait for: the waiter tells which.
        Returns the seconds that it took. Raises `QueueFull`, and what gateways together refuse it for. Cancelled, it
        leaves the set and what it may have got."""
        began = time.monotonic()
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.wake = partial(_wake, woken)
        try:
            if not self.scheduler.offer(waiter, began):
                self._tick_soon()
                await woken
        except asyncio.CancelledError:
            self.scheduler.left(waiter, time.monotonic())
            raise
        if waiter.refused is not None:
            raise waiter.refused
        seconds = time.monotonic() - began
        self.seconds.observe(seconds)
        return seconds

    def changed(self, state: BackendState) -> None:
        """This backend went, came back, has more room or ends a pause."""
        self.scheduler.changed(state, time.monotonic())

    def forget(self, state: BackendState) -> None:
        """This backend was taken out of routes.yaml, and has ended what ran there."""
        self.scheduler.forget(state)

    def _tick_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.scheduler.tick(time.monotonic())
        if self.scheduler.waiters:
            self._tick_soon()

    def queue_depth(self) -> dict[str, int]:
        """Backend -> requests that wait for a slot there."""
        return self.scheduler.depth()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():  # its task may have been cancelled meanwhile
        woken.set_result(None)
