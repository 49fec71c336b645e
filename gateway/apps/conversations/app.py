"""Kept responses, as an app of a gateway."""

from __future__ import annotations

from gateway.apps.conversations.conversations import Conversations
from gateway.runtime.apps import Extension, Routers
from gateway.runtime.gateway import Gateway


def app(gateway: Gateway) -> Extension:
    conversations = Conversations(gateway.snapshot.server, gateway.metrics.failures, gateway.short_of)

    def routers() -> Routers:
        from gateway.apps.conversations import api

        return (api.router(gateway, conversations),)

    return Extension(part=conversations, paths=frozenset({"responses"}), routers=routers)
