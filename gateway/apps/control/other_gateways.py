"""Operations that other gateways of the same fleet run: this gateway knows them, and begins none beside them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gateway.apps.control.record import Operation
from gateway.errors import GatewayError
from gateway.supervision import Failures

if TYPE_CHECKING:
    from gateway.apps.cluster.shared_operations import SharedOperations

log = logging.getLogger("gateway.operations")

ALONE = "redis is away: only this gateway knows of it, and another one could begin one too"


class KnownOperations(Protocol):
    """The operations that this gateway knows (operations.py)."""

    @property
    def failures(self) -> Failures: ...
    def find(self, name: str) -> Operation | None: ...
    def know(self, operation: Operation) -> None: ...
    async def interrupted(self, operation: Operation, why: str) -> None: ...


class OtherGateways:
    """What other gateways run, and what they get of this one's operation."""

    def __init__(self, known: KnownOperations, shared: SharedOperations) -> None:
        self._known = known
        self._shared = shared
        self._own: str | None = None  # the operation that this gateway runs
        self._opened = False
        self._taking_over = False
        shared.on_record = self._received
        shared.on_abandoned = self._abandoned

    def open(self) -> None:
        """This gateway knows its own operations, and ends those of gateways that are gone from now on. Not before: it
        may have run the operation itself, before its restart, and knows best how that ended."""
        self._opened = True

    def counts(self, running: Operation) -> bool:
        """Does an operation that runs by its record keep this gateway from another one? While Redis is away, nobody
        knows of the others."""
        return running.id == self._own or self._shared.joined

    def owns(self, operation: Operation) -> bool:
        """Does this gateway run it?"""
        return operation.id == self._own

    async def claim(self, operation: Operation) -> None:
        """Nobody else may begin one now. Raises `operation_running` while another gateway runs one."""
        operation.gateway = self._shared.name
        if not await self._shared.claim(operation.named):
            operation.notes.append(ALONE)
        self._own = operation.id

    def release(self) -> None:
        self._own = None
        self._shared.release()

    def publish(self, operation: Operation) -> None:
        self._shared.publish(operation.for_others())

    def _received(self, record: dict[str, Any]) -> None:
        try:
            operation = msgspec.convert(record, Operation)
        except msgspec.ValidationError as error:
            log.warning("another gateway tells of an operation that this one does not understand: %s", error)
            return
        if operation.id != self._own:
            self._known.know(operation)

    def _abandoned(self, name: str) -> None:
        if self._opened and not self._taking_over:
            self._taking_over = True
            self._known.failures.once("operation", self._take_over(name), f"operation {name} of a gateway that is gone")

    async def _take_over(self, name: str) -> None:
        """The gateway that ran it is gone: one of the others says that it has failed."""
        try:
            operation = self._known.find(name)
            if operation is None or operation.state != "running":
                return
            joined = await self._shared.claim(operation.named)
            try:
                operation = self._known.find(name)  # it may have been ended while this gateway waited
                if joined and operation is not None and operation.state == "running":
                    await self._known.interrupted(operation, f"interrupted: gateway {operation.gateway} is gone")
            finally:
                if self._own is None:  # else the claim is that of an operation which has begun here meanwhile
                    self._shared.release()
        except GatewayError:
            pass  # another gateway says so
        finally:
            self._taking_over = False
