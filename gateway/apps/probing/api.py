"""`POST /admin/backends/{name}/probe`: the checks of a backend by the running gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.api.admin import admit, backend_of
from gateway.apps.probing.report import probe_report
from gateway.domain.backend import BackendState
from gateway.domain.facts import Observation
from gateway.errors import GatewayError
from gateway.health.probes import probe
from gateway.runtime.gateway import Gateway

NDJSON = "application/x-ndjson"
STOP_LOOK = 0.5  # seconds between two checks whether the gateway stops


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter(prefix="/admin")
    probing: dict[str, ProbeRun] = {}  # by backend: callers that come while a probe runs get its findings

    @routes.post("/backends/{name}/probe")
    async def probe_backend(request: Request, name: str, now: bool = False) -> Response:
        """The findings; with `accept: application/x-ndjson` a line for each check when it is done, then the findings.
        `now` = do not wait until the backend is idle."""
        admit(gateway, request)
        state = backend_of(gateway, name)
        running = probing.get(name)
        if running is None or running.task.done():
            running = probing[name] = ProbeRun(gateway, state, now=now)
        if NDJSON in request.headers.get("accept", ""):
            return Lines(_lines(running))
        return JSONResponse(await running.findings())

    return routes


class ProbeRun:
    """A probe under way. It continues when its caller leaves, but not when the gateway stops."""

    def __init__(self, gateway: Gateway, state: BackendState, *, now: bool) -> None:
        self._gateway = gateway
        self._seen: list[tuple[str, Observation]] = []
        self._changed = asyncio.Event()
        self.task: asyncio.Task[dict[str, Any]] = asyncio.create_task(self._run(state, now))
        self.task.add_done_callback(lambda _: self._tell())

    async def _run(self, state: BackendState, now: bool) -> dict[str, Any]:
        work = asyncio.create_task(probe(state, now=now, on_seen=self._note))
        while not work.done():
            await asyncio.wait({work}, timeout=STOP_LOOK)
            if self._gateway.stopping:
                work.cancel()
        return probe_report(state, work.result(), time.monotonic())

    async def findings(self) -> dict[str, Any]:
        """The findings, when the probe is done. Raises `no_backend_available` if the gateway stops before."""
        await asyncio.wait({self.task})
        if self.task.cancelled():
            raise GatewayError("no_backend_available", "The gateway is stopping: the probe was not ended.")
        return self.task.result()

    def _note(self, check: str, observation: Observation) -> None:
        self._seen.append((check, observation))
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def seen(self) -> AsyncIterator[tuple[str, Observation]]:
        """(check, observation) of each check, from the first to the last."""
        sent = 0
        while True:
            changed = self._changed
            for check, observation in self._seen[sent:]:
                sent += 1
                yield check, observation
            if self.task.done():
                return
            if sent == len(self._seen):
                await changed.wait()


class Lines(Response):
    """A response of lines that are sent as they arise."""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        super().__init__(media_type=NDJSON)
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]
        self._lines = lines

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for line in self._lines:
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _lines(running: ProbeRun) -> AsyncIterator[bytes]:
    async for check, observation in running.seen():
        yield msgspec.json.encode({"check": check, **asdict(observation)}) + b"\n"
    if not running.task.cancelled():
        yield msgspec.json.encode(await running.findings()) + b"\n"
