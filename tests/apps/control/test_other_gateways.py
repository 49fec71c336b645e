"""Operations of other gateways: what is left of one that is gone."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from gateway.apps.control.other_gateways import OtherGateways
from gateway.apps.control.record import Operation
from gateway.supervision import Failures
from tests.waiting import turns


class Shared:
    """Grants every claim."""

    name, joined = "g1", True
    on_record: Any = None
    on_abandoned: Any = None

    def __init__(self) -> None:
        self.released = 0

    async def claim(self, _stated: str) -> bool:
        return True

    def release(self) -> None:
        self.released += 1


class KnownOperations:
    """Knows one operation of another gateway, whose end takes its time to be written."""

    def __init__(self, operation: Operation) -> None:
        self.failures = Failures()
        self.operation = operation
        self.written = asyncio.Event()

    def find(self, _name: str) -> Operation:
        return self.operation

    def know(self, operation: Operation) -> None: ...

    async def interrupted(self, operation: Operation, _why: str) -> None:
        operation.state = "failed"
        await self.written.wait()


def an_operation(name: str) -> Operation:
    return Operation(name, "stop", None, None, "a", forced=False, state="running", began=0.0, steps=[])


async def test_what_begins_while_an_abandoned_one_is_ended_keeps_its_claim() -> None:
    shared, known = Shared(), KnownOperations(an_operation("theirs"))
    elsewhere = OtherGateways(known, cast(Any, shared))
    elsewhere.open()
    shared.on_abandoned("theirs")
    await turns(5)
    await elsewhere.claim(an_operation("ours"))
    known.written.set()
    await turns(5)
    assert shared.released == 0
    elsewhere.release()
    assert shared.released == 1
