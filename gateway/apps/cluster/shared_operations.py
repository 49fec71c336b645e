"""Operations on the fleet, shared by its gateways: one runs at a time, and all know of it.

The right to run one (`operate`) is decided inside Redis; it ends with the operation, or when its gateway no longer
counts as present. What is known of the latest operation is a fact that its gateway publishes (state_sync.py). The
record itself is opaque here: JSON with an `id` and a `state`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.apps.cluster.scripts import Batch, ignore
from gateway.apps.cluster.state_sync import StateSync
from gateway.errors import GatewayError

Record = dict[str, Any]


class SharedOperations:
    """`joined` is called to learn whether Redis answers. `on_record` gets each record that another gateway publishes,
    `on_abandoned` the id of a running one whose gateway is gone."""

    def __init__(self, name: str, gateway: str, facts: StateSync, joined: Callable[[], bool], wake: Callable[[], None]):
        self.name = name  # of this gateway, for people
        self.on_record: Callable[[Record], None] = lambda _: None
        self.on_abandoned: Callable[[str], None] = lambda _: None
        self._gateway = gateway
        self._facts = facts
        self._joined = joined
        self._wake = wake
        self._asking: dict[
            asyncio.Future[str | None], str
        ] = {}  # not sent yet; who runs one, "" = nobody, None if no Redis
        self._sent: set[asyncio.Future[str | None]] = set()
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
        asked: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._asking[asked] = stated
        self._wake()
        try:
            runs = await asked
        except asyncio.CancelledError:
            self.release()  # it may have been granted
            raise
        finally:
            self._asking.pop(asked, None)
            self._sent.discard(asked)
        if runs:
            raise GatewayError("operation_running", f"Another operation is under way: {runs}.")
        self._said = stated
        return runs is not None

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
        found: Batch = []
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
            if not asked.done():
                asked.set_result(None)
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


def _answer(asked: asyncio.Future[str | None], answer: list[Any]) -> None:
    if not asked.done():
        asked.set_result("" if answer[0] else answer[1])
