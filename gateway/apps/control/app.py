"""Control of the fleet, as an app of a gateway."""

from __future__ import annotations

from typing import Any

from gateway.apps.control.operations import Operations
from gateway.apps.control.recovery import Recovery
from gateway.apps.control.starter import Starter
from gateway.apps.control.troubles import Troubles
from gateway.config.snapshot import Snapshot
from gateway.runtime.apps import Extension, Routers
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    control = Control(gateway)
    return Extension(
        part=control,
        follow=control.follow,
        routers=control.routers,
        operation=control.operation,
        troubles=lambda: control.troubles.known,
        recovered=lambda: control.recovery.told,
    )


class Control:
    """Operations on the fleet, and the starts that requests cause."""

    def __init__(self, gateway: Gateway) -> None:
        self.operations = Operations(gateway)
        self.starter = Starter(gateway, self.operations)
        self.troubles = Troubles(gateway)
        self.recovery = Recovery(gateway, self.operations)
        self._gateway = gateway

    async def open(self) -> None:
        await self.operations.open()
        await self.follow(self._gateway.snapshot)
        await self.starter.open()
        await self.troubles.open()
        await self.recovery.open()

    async def close(self) -> None:
        await self._gateway.metrics.failures.close(self.recovery, self.troubles, self.starter, self.operations)

    async def follow(self, snapshot: Snapshot) -> None:
        self._gateway.admission.starts = self.starter if await self.starter.follow(snapshot) else None

    def routers(self) -> Routers:
        from gateway.apps.control import api

        return (api.router(self._gateway, self.operations), api.plan_router(self._gateway))

    def operation(self, whole: bool) -> dict[str, Any] | None:
        latest = self.operations.latest
        return None if latest is None else latest.as_json() if whole else latest.shown_to_all()
