"""`/tokenize` and `/detokenize`, as an app of a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.runtime.apps import Extension, Routers
from gateway.runtime.gateway import Gateway

if TYPE_CHECKING:
    
def app(gateway: Gateway) -> Extension:
    def routers() -> Routers:
        from gateway.apps.tokens import api

        return (api.router(gateway),)

    return Extension(paths=frozenset({"tokenize", "detokenize"}), routers=routers)
