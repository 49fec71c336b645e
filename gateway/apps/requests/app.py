"""The last requests, as an app of a gateway: those that run, and the past ones where `server.requests` keeps them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.apps.requests.capture import Capture
from gateway.apps.requests.recorder import Recorder
from gateway.apps.requests.running import RunningRequests
from gateway.apps.requests.store import CapturedRequest, CapturedStore, RequestStore, Search
from gateway.runtime.apps import Extension
from gateway.runtime.gateway import Gateway

if TYPE_CHECKING:
    from fastapi import APIRouter


def app(gateway: Gateway) -> Extension:
    requests = Requests(gateway)

    def routers() -> Sequence[APIRouter]:
        from gateway.apps.requests import api

        return api.router(gateway, requests), api.capture_router(gateway, requests)

    return Extension(part=requests, lost=requests.lost, routers=routers)


class Requests:
    """The requests of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        server = gateway.snapshot.server
        self._settings = settings = server.requests
        self._observers = gateway.services.line_observers
        self.running = RunningRequests(gateway.active)
        store = RequestStore(Path(server.data), settings.keep, settings.days)
        self.capture = Capture(gateway, self._keep)
        self.captured = CapturedStore(Path(server.data))
        self._failures = gateway.metrics.failures
        self._keeping: set[asyncio.Task[Any]] = set()
        self._recorder = Recorder(store, gateway.metrics.failures) if settings.keep else None

    async def open(self) -> None:
        await asyncio.to_thread(self.captured.drop_old, time.time())
        if self._recorder is not None:
            self._recorder.open()
            self._observers.append(self._recorder.put)

    async def close(self) -> None:
        self.capture.end()
        if self._keeping:
            await asyncio.wait(self._keeping)
        await asyncio.to_thread(self.captured.close)
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)

    def _keep(self, one: CapturedRequest) -> None:
        task = self._failures.once("requests", asyncio.to_thread(self.captured.add, one), f"keeping {one.id}")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    def find(self, search: Search) -> list[dict[str, Any]]:
        """Blocks. Raises sqlite3.Error, OSError."""
        return self._recorder.find(search) if self._recorder is not None else []

    def kept(self) -> dict[str, int]:
        """What is kept, and how many could not be."""
        return {"keep": self._settings.keep, "days": self._settings.days, "lost": self.lost()["requests"]}

    def lost(self) -> dict[str, int]:
        return {"requests": self._recorder.lost if self._recorder is not None else 0}
