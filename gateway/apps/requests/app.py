"""The last requests, as an app of a gateway."""

from __future__ import annotations

from gateway.apps.requests.requests import Requests
from gateway.runtime.apps import Extension, Routers
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    requests = Requests(gateway)

    def routers() -> Routers:
        from gateway.apps.requests import api

        return api.router(gateway, requests), api.capture_router(gateway, requests)

    return Extension(part=requests, lost=requests.lost, routers=routers)
