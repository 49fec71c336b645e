"""The turn of one gateway to start or stop backends for requests, so that two of them do not start the same backend, or
make room twice. It ends with the gateway that has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from gateway.apps.cluster.scripts import Batch, ignore
from gateway.supervision import Failures

LASTS = 10.0  # seconds that a turn lasts without a renewal
RENEW = 3.0  # seconds between two renewals
AGAIN = 0.5  # seconds until a turn is asked for again that another gateway has
PATIENCE = 2.0  # seconds for an answer; then Redis is away, or about to be found away


class SharedTurn:
    """`wake` is called when there is something to send (`pending_operations`). `joined`: whether Redis answers; while
    it does not, every gateway has its turn."""

    def __init__(
        self, gateway: str, wake: Callable[[], None], joined: Callable[[], bool], failures: Failures | None = None
    ) -> None:
        self._gateway = gateway
        self._wake = wake
        self._joined = joined
        self._failures = failures or Failures()
        self._unsent: Batch = []

    def pending_operations(self) -> Batch:
        found, self._unsent = self._unsent, []
        return found

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait for the turn, and keep it."""
        while not await self._take():
            await asyncio.sleep(AGAIN)
        renewing = self._failures.task("shared", self._renew)
        try:
            yield
        finally:
            renewing.cancel()
            self._unsent.append((("give",), ignore))
            self._wake()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW)
            await self._take()

    async def _take(self) -> bool:
        """Is it this gateway's turn (again)?"""
        if not self._joined():
            return True
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._unsent.append((("take", round(LASTS * 1000)), lambda answer: _resolve(answered, answer)))
        self._wake()
        try:
            async with asyncio.timeout(PATIENCE):
                return bool((await answered)[0] == self._gateway)
        except TimeoutError:
            return not self._joined()


def _resolve(answered: asyncio.Future[Any], answer: Any) -> None:
    if not answered.done():
        answered.set_result(answer)
