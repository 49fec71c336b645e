"""`/admin`: operations for operators of the running gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.api.answering import body_of
from gateway.api.caller import admit as admit_caller
from gateway.api.caller import caller_of
from gateway.config.problems import ConfigError, NotRead
from gateway.domain.backend import BackendState
from gateway.domain.facts import Observation
from gateway.errors import GatewayError, exhausted
from gateway.health.probes import probe, probe_report
from gateway.routing.explain import explain_asked
from gateway.runtime.gateway import Gateway

NDJSON = "application/x-ndjson"
STOP_LOOK = 0.5  # seconds between two checks whether the gateway stops
CONFIRM_OPEN = "open"  # the value of `confirm` that allows an edit to open the gateway


def router(gateway: Gateway) -> APIRouter:
    """`POST /admin/backends/{name}/probe | drain | resume`, `POST /admin/reload`, `POST /admin/explain`."""
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

    @routes.post("/backends/{name}/drain")
    async def drain_backend(request: Request, name: str) -> Response:
        """Requests that run there may end, and no new ones are sent, until it is resumed or the gateway restarts."""
        admit(gateway, request)
        state = backend_of(gateway, name)
        state.evidence.drain()
        return JSONResponse(drain_status(state))

    @routes.post("/backends/{name}/resume")
    async def resume_backend(request: Request, name: str) -> Response:
        """Ends a drain; changes nothing for a backend that is not draining."""
        admit(gateway, request)
        state = backend_of(gateway, name)
        state.evidence.resume()
        return JSONResponse(drain_status(state))

    @routes.post("/reload")
    async def reload(request: Request) -> Response:
        """Read routes.yaml again: `{path, changes, restart, warnings}`. `{"confirm": "open"}`: also if the file
        opens the gateway. Raises `invalid_config` with every mistake."""
        admit(gateway, request)
        async with body_of(gateway, request) as body:
            confirmed = _confirmed(body)
        if gateway.reloader is None:
            raise GatewayError("not_found", "This gateway was not started from a file.")
        path = gateway.reloader.path
        try:
            taken = await gateway.reloader.reload(may_open=confirmed)
        except NotRead as error:
            gateway.short_of(error.kind)
            raise exhausted(error.kind) from None
        except ConfigError as error:
            message = f"{path} is not valid, what was before stays in force:\n{error}"
            raise GatewayError("invalid_config", message) from None
        answer = {"changes": taken.changes, "restart": taken.restart, "warnings": taken.warnings}
        return JSONResponse({"path": str(path), **answer})

    @routes.post("/explain")
    async def explain_request(request: Request) -> JSONResponse:
        """Where a request would be sent now, and why. Accepts `{"alias", "request": {...}}` or `{"alias", "tools":
        bool, "tokens": N}`, and `"client"`, whose rules apply."""
        admit(gateway, request)
        starts = gateway.admission.starts
        async with body_of(gateway, request, gateway.snapshot.server.max_body) as body:
            explanation = explain_asked(
                gateway.snapshot,
                gateway.fleet.states,
                _fields(body),
                time.monotonic(),
                gateway.apps.read_request,
                over_budget=gateway.accounts.over_budget,
                decides_start=starts.decision if starts is not None else None,
            )
            return JSONResponse(explanation)

    return routes


def _fields(body: bytes) -> dict[str, Any]:
    """The body's fields. Raises `invalid_request_body`."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GatewayError("invalid_request_body", f"The request body must be a JSON object: {error}") from None


def _confirmed(body: bytes) -> bool:
    """Does the body of a reload confirm that an edit may open the gateway? Raises `invalid_request_body`."""
    if not body.strip():
        return False
    fields = _fields(body)
    if fields.get("confirm") not in (None, CONFIRM_OPEN):
        raise GatewayError("invalid_request_body", 'The only word that `confirm` takes is "open".', param="confirm")
    return fields.get("confirm") == CONFIRM_OPEN


def drain_status(state: BackendState) -> dict[str, Any]:
    """`{backend, state, reason, inflight}`: a drain is complete when `inflight` is 0."""
    health = state.health
    return {
        "backend": state.name, "state": health.state.value, "reason": health.reason, "inflight": state.inflight
    }  # fmt: skip


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


def backend_of(gateway: Gateway, name: str) -> BackendState:
    """The backend of this name. Raises `not_found`."""
    state = gateway.fleet.states.get(name)
    if state is None:
        close = get_close_matches(name, gateway.fleet.states, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise GatewayError("not_found", f"There is no backend '{name}'.{hint}")
    return state


# -- permission -----------------------------------------------------------------------------------------------------


def admit(gateway: Gateway, request: Request) -> None:
    """Admits whoever may operate the gateway; see `caller.admit`, which says what it raises."""
    admit_caller(gateway, caller_of(request.scope))


def may_admin(gateway: Gateway, request: Request) -> bool:
    """Would `/admin` admit this caller?"""
    try:
        admit(gateway, request)
    except GatewayError:
        return False
    return True
