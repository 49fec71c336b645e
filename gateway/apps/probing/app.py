"""`POST /admin/backends/{name}/probe`, as an app of a gateway."""

from __future__ import annotations

from gateway.runtime.apps import Extension, Routers
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    def routers() -> Routers:
        from gateway.apps.probing import api

        return (api.router(gateway),)

    return Extension(routers=routers)
