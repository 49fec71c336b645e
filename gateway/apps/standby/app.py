"""Warm standby, as an app of a gateway."""

from __future__ import annotations

from gateway.apps.standby.standby import WarmStandby
from gateway.runtime.apps import Extension
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    prober = gateway.prober
    standby = WarmStandby(
        gateway.fleet, lambda: gateway.snapshot, prober.loader, prober.machines, gateway.metrics.failures
    )
    return Extension(part=standby)
