"""Files and batches, as an app of a gateway."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.apps.batches.batches import Batches
from gateway.apps.batches.sqlite_store import SqliteBatchStore
from gateway.config.snapshot import Server
from gateway.runtime.apps import Extension, Routers
from gateway.runtime.gateway import Gateway

if TYPE_CHECKING:
    from gateway.apps.batches.store import BatchStore

log = logging.getLogger("gateway.apps.batches")


def app(gateway: Gateway) -> Extension:
    batches = Batches(gateway, _store(gateway.snapshot.server))

    def routers() -> Routers:
        from gateway.apps.batches import api

        return api.files_router(gateway, batches), api.batches_router(gateway, batches)

    return Extension(
        part=batches,
        begin_stop=batches.begin_stop,
        paths=frozenset({"batches", "files"}),
        routers=routers,
        uploads=("/v1/files", "/files"),
        batches=batches.status,
    )


def _store(server: Server) -> BatchStore:
    """In `server.data`; in Redis where gateways share the fleet, so that they share its batches."""
    if server.shared is None:
        return SqliteBatchStore(Path(server.data))
    from gateway.apps.batches.redis_store import RedisBatchStore

    if SqliteBatchStore(Path(server.data)).there:
        log.warning("batches in %s stay as they are while `server.shared` is set", server.data)
    return RedisBatchStore(server.shared)
