"""Operations on the fleet, shared by its gateways: one runs at a time, and all know of it.

The right to run one (`operate`) is decided inside Redis; it ends with the operation, or when its gateway no longer
counts as present. What is known of the latest operation is a fact that its gateway publishes (state_sync.py). The
record itself is opaque here: JSON with an `id` and a `state`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from gateway.apps.cluster.redis_connection import Batch, ignore
from gateway.apps.cluster.state_sync import StateSync
from gateway.errors import GatewayError
from gateway.supervision import Failures

Record = dict[str, Any]

LASTS = 10.0  # seconds that a turn lasts without a renewal
RENEW = 3.0  # seconds between two renewals
AGAIN = 0.5  # seconds until a turn is asked for again that another gateway has
PATIENCE = 2.0  # seconds for an answer; then Redis is away, or about to be found away


class SharedOperations:
    """`joined` is called to learn whether Redis answers. `on_record` gets each record that another gateway publishes,
    `on_abandoned` the id of a running one whose gateway is gone."""

    def __init__(
        self,
        name: str,
        gateway: str,
        facts: StateSync,
        joined: Callable[[], bool],
        wake: Callable[[], None],
        failures: Failures,
    ) -> None:
        self.name = name  # of this gateway, for people
        self.on_record: Callable[[Record], None] = lambda _: None
        self.on_abandoned: Callable[[str], None] = lambda _: None
        self._gateway = gateway
        self._facts = facts
        self._joined = joined
        self._wake = wake
        self._failures = failures
        self._turns: Batch = []  # asked for or given back, not sent yet
        self._asking: dict[asyncio.Future[Any], str] = {}  # not sent yet -> what is said; the answer None: no Redis
        self._sent: set[asyncio.Future[Any]] = set()
        self._said: str | None = None  # of the operation that this gateway runs; None if it runs none
        self._ended = False  # and the others have to hear of it
        self._foreign: Record | None = None  # the latest operation, if another gateway runs or ran it
        facts.on_operation = self._received

    @property
    def joined(self) -> bool:
        return self._joined()

    # -- the right to run one -------------------------------------------------------------------------------------

    async def claim(self, stated: str) -> bool:
        """Claim the right to run an operation. False if Redis is away: this gateway decides alone. Raises
        `operation_running` while another gateway runs one."""
        if not self._joined():
            self._said = stated
            return False
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asking[asked] = stated
        self._wake()
        try:
            answer = await asked
        except asyncio.CancelledError:
            self.release()  # it may have been granted
            raise
        finally:
            self._asking.pop(asked, None)
            self._sent.discard(asked)
        if answer is not None and not answer[0]:
            raise GatewayError("operation_running", f"Another operation is under way: {answer[1]}.")
        self._said = stated
        return answer is not None

    def release(self) -> None:
        """The operation has ended, or did not begin."""
        self._said, self._ended = None, True
        self._wake()

    def publish(self, record: Record) -> None:
        """The operation of this gateway, as it is now."""
        self._foreign = None
        self._facts.publish_operation([self._gateway, record])

    # -- to and from Redis ----------------------------------------------------------------------------------------

    def pending_operations(self) -> Batch:
        """The operations to send now, each with the callback for its answer. They follow the facts of this gateway."""
        found, self._turns = self._turns, []
        if self._ended:
            self._ended = False
            found.append((("operated",), ignore))
        for asked, stated in self._asking.items():
            self._sent.add(asked)
            found.append((("operate", stated), partial(_answer, asked)))
        self._asking.clear()
        return found

    def look(self) -> Batch:
        """Sent with each renewal, after the news: whether the gateway is still there that runs an operation. One that
        this gateway has begun alone is claimed."""
        if self._said is not None:
            return [(("operate", self._said), ignore)]
        if self._foreign is None or self._foreign["state"] != "running":
            return []
        asked = self._foreign["id"]
        return [(("operator",), lambda answer: self._looked(asked, answer))]

    def lost(self) -> None:
        """Redis is away: the gateway that asks decides alone."""
        for asked in (*self._asking, *self._sent):
            _answer(asked, None)
        self._asking.clear()
        self._sent.clear()

    def _looked(self, asked: str, answer: list[str]) -> None:
        foreign = self._foreign
        if not answer and foreign is not None and foreign["id"] == asked and foreign["state"] == "running":
            self.on_abandoned(asked)

    def _received(self, value: Any) -> None:
        gateway, record = value
        if gateway != self._gateway:
            self._foreign = record
            self.on_record(record)

    # -- the turn to start or stop for requests --------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn of this gateway to start or stop backends for requests, and keep it: two gateways must not
        start the same backend, or make room twice. It ends with the gateway that has it. Without Redis every gateway
        has its turn."""
        while not await self._take():
            await asyncio.sleep(AGAIN)
        renewing = self._failures.task("shared", self._renew)
        try:
            yield
        finally:
            renewing.cancel()
            self._turns.append((("give",), ignore))
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
        self._turns.append((("take", round(LASTS * 1000)), partial(_answer, answered)))
        self._wake()
        try:
            async with asyncio.timeout(PATIENCE):
                return bool((await answered)[0] == self._gateway)
        except TimeoutError:
            return not self._joined()


def _answer(asked: asyncio.Future[Any], answer: Any) -> None:
    if not asked.done():
        asked.set_result(answer)
