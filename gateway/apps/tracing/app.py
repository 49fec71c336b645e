"""Traces, as an app of a gateway: requests are traced as the snapshot in force says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.config.snapshot import Snapshot, Traces
from gateway.runtime.apps import Extension
from gateway.runtime.gateway import Gateway
from gateway.supervision import Failures

if TYPE_CHECKING:
    from gateway.apps.tracing.traces import Tracing


def app(gateway: Gateway) -> Extension:
    tracer = TracingSwitch(gateway)
    return Extension(part=tracer, follow=tracer.follow, lost=tracer.lost)


class TracingSwitch:
    """`tracing`: the traces that are made now; None without `traces` in routes.yaml."""

    def __init__(self, gateway: Gateway) -> None:
        self.tracing: Tracing | None = None
        self._gateway = gateway

    async def open(self) -> None:
        await self.follow(self._gateway.snapshot)

    async def follow(self, snapshot: Snapshot) -> None:
        """OpenTelemetry is imported only if tracing is enabled."""
        settings, before = snapshot.traces, self.tracing
        if before is not None and before.settings == settings:
            return
        failures = self._gateway.metrics.failures
        self.tracing = await asyncio.to_thread(_tracing, settings, failures) if settings is not None else None
        self._gateway.services.tracer = self.tracing
        if before is not None:
            await asyncio.to_thread(before.close)

    async def close(self) -> None:
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def lost(self) -> dict[str, int]:
        return {"spans": self.tracing.exporter.lost if self.tracing is not None else 0}


def _tracing(settings: Traces, failures: Failures) -> Tracing:
    from gateway.apps.tracing.traces import Tracing

    return Tracing(settings, failures)
