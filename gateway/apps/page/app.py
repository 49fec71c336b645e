"""The page and what it shows, as an app of a gateway."""

from __future__ import annotations

from gateway.apps.page.history import History
from gateway.runtime.apps import Extension, Routers
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    history = History(
        lambda: gateway.fleet.states, lambda: gateway.prober.machines, gateway.admission.queue_depth, gateway.metrics
    )

    def routers() -> Routers:
        from gateway.apps.page import assets, status

        return status.router(gateway, history), assets.router()

    return Extension(
        part=history,
        paths=frozenset({"", "events", "status", "web"}),
        routers=routers,
        acceptance=history.acceptance,
    )
