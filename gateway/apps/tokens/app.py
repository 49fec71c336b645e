"""`/tokenize` and `/detokenize`, as an app of a gateway."""

from __future__ import annotations

from gateway.runtime.apps import Extension, Routers
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    def routers() -> Routers:
        from gateway.apps.tokens import api

        return (api.router(gateway),)

    return Extension(paths=frozenset({"tokenize", "detokenize"}), routers=routers)
