"""Operations on the fleet: `POST /admin/mode`, `POST /admin/backends/{name}/start | stop | restart`, `GET | DELETE
/admin/operations`. And its memory plan: `GET /status/plan`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.api.admin import admit, backend_of
from gateway.api.answering import STALLED, body_as, until_left
from gateway.api.caller import caller_of, identify_caller
from gateway.apps.control.engine_logs import LINES_MOST, follow_log, read_log, unit_of
from gateway.apps.control.memory.arithmetic import GIB
from gateway.apps.control.memory.live import beside_the_plan
from gateway.apps.control.memory.plan import FleetPlan, plan_json
from gateway.apps.control.memory.plan_svg import plan_svg
from gateway.apps.control.operations import Operations
from gateway.apps.control.record import described
from gateway.apps.control.switching import Kind, memory_plan
from gateway.config.snapshot import Snapshot
from gateway.domain.health_state import SERVING
from gateway.errors import GatewayError
from gateway.runtime.gateway import Gateway

BEGUN = 202
FOLLOWERS_MOST = 8  # logs that are followed at the same time
Lines = Callable[[Callable[[], bool]], AsyncGenerator[str]]  # of a log, until the function says that it is over


class Order(msgspec.Struct):
    """The body of a request. `mode`: the target of a switch. `force`: also if it does not fit, or a command is missing.
    `dry_run`: only say the steps. `profile`: the one to start a backend with, "" = none; without it that of the mode in
    force."""

    mode: str = ""
    force: bool = False
    dry_run: bool = False
    profile: str | None = None


def plan_router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()
    planning = asyncio.Lock()  # many readers at once get one computation
    latest: tuple[Snapshot, FleetPlan | str, str] | None = None  # computed once for each snapshot

    @routes.get("/status/plan")
    async def status_plan(request: Request) -> JSONResponse:
        """The memory plan of the fleet, beside what the nodes hold."""
        nonlocal latest
        identify_caller(gateway, caller_of(request.scope))
        snapshot = gateway.snapshot
        async with planning:
            if latest is None or latest[0] is not snapshot:
                latest = snapshot, *await asyncio.to_thread(_planned, snapshot)
            _, fleet, picture = latest
        return JSONResponse(_plan_json(gateway, fleet, picture), headers={"cache-control": "no-store"})

    return routes


def _planned(snapshot: Snapshot) -> tuple[FleetPlan | str, str]:
    """(the plan, its picture); instead of the plan a text that names the mistake in the operator's catalogue."""
    fleet = memory_plan(snapshot, snapshot.mode)
    return fleet, plan_svg(fleet, style=False) if isinstance(fleet, FleetPlan) and fleet.nodes else ""


def _plan_json(gateway: Gateway, fleet: FleetPlan | str, picture: str) -> dict[str, Any]:
    """`{mode, nodes: {name: {..., live}}, svg, error}`; the keys of `gateway fleet plan --json`, and per node `live`:
    `{used, planned, note, warning}` in GiB, None without an exporter."""
    if isinstance(fleet, str):
        return {"mode": gateway.snapshot.mode, "nodes": {}, "svg": "", "error": fleet}
    found = plan_json(fleet)
    for name, node in fleet.nodes.items():
        machine = gateway.prober.machines.get(name)
        used = machine.memory_used if machine is not None else None
        here = [s for s in gateway.fleet.states.values() if name in s.backend.nodes and s.name not in fleet.uncounted]
        running = [state.name for state in here if state.health.state in SERVING]
        found["nodes"][name]["live"] = None if used is None else asdict(beside_the_plan(node, used / GIB, running))
    return {**found, "svg": picture, "error": None}


def router(gateway: Gateway, operations: Operations) -> APIRouter:
    """An operation that begins is answered with 202 and followed at `/admin/operations/{id}`."""
    routes = APIRouter(prefix="/admin")
    followers: set[FollowedLog] = set()

    async def obey(request: Request, kind: Kind, name: str | None) -> Response:
        order = await body_as(gateway, request, Order)
        if not (name := name or order.mode):
            raise GatewayError("invalid_request_body", "`mode` is missing: the mode to switch to.", param="mode")
        if order.profile is not None and kind != "start":
            raise GatewayError("invalid_request_body", "`profile` is for a start of one backend.", param="profile")
        if order.dry_run:
            steps = await operations.planned(kind, name, profile=order.profile)
            lanes, expected = operations.lanes(steps)
            found = described(kind, name, gateway.snapshot.mode, steps)
            return JSONResponse({**found, "lanes": lanes, "expected": expected})
        by = _whose(gateway, request)
        operation = await operations.begin(kind, name, force=order.force, profile=order.profile, by=by)
        return JSONResponse(operation.as_json(), BEGUN)

    @routes.post("/mode")
    async def switch_mode(request: Request) -> Response:
        """Switch to another mode: `{"mode": NAME, "force": false}`."""
        admit(gateway, request)
        return await obey(request, "switch", None)

    def of_one(kind: Kind, doc: str) -> None:
        async def order_backend(request: Request, name: str) -> Response:
            admit(gateway, request)
            return await obey(request, kind, backend_of(gateway, name).name)

        routes.add_api_route(f"/backends/{{name}}/{kind}", order_backend, methods=["POST"], description=doc)

    of_one("start", "Start one backend, and wait until it serves. With another `profile`, it is stopped first.")
    of_one("stop", "Drain one backend, and stop it.")
    of_one("restart", "Drain one backend, stop it, start it with its present profile, and wait until it serves.")

    @routes.get("/backends/{name}/logs")
    async def engine_logs(
        request: Request, name: str, lines: int = 200, follow: bool = False, node: str = ""
    ) -> Response:
        """The last lines of the engine's journal, else of its container, as text; `follow`: and each as it comes.
        `node`: of an engine over several, the head by default."""
        admit(gateway, request)
        backend = backend_of(gateway, name).backend
        unit = unit_of(gateway.snapshot, backend, node)
        lines = min(max(lines, 1), LINES_MOST)
        if follow:
            if len(followers) >= FOLLOWERS_MOST:
                raise GatewayError("rate_limit_exceeded", f"{FOLLOWERS_MOST} logs are followed already.")
            return FollowedLog(partial(follow_log, unit, backend, lines), lambda: gateway.stopping, followers)
        return PlainTextResponse("".join(f"{line}\n" for line in await read_log(unit, backend, lines)))

    @routes.get("/operations")
    async def latest(request: Request) -> Response:
        """`{mode, operation}`: the mode in force, and the operation under way or the last one; null = none."""
        admit(gateway, request)
        found = operations.latest
        shown = found.as_json() if found is not None else None
        return JSONResponse({"mode": gateway.snapshot.mode, "operation": shown})

    @routes.get("/operations/{name}")
    async def one_operation(request: Request, name: str) -> Response:
        """One operation: `{id, mode, state, steps: [{backend, what, state, seconds, output}], ...}`."""
        admit(gateway, request)
        return JSONResponse(operations.get(name).as_json())

    @routes.delete("/operations/{name}")
    async def cancel(request: Request, name: str) -> Response:
        """End an operation in the middle: its commands are killed, what was drained and not stopped serves again.
        `latest` is the one under way. Answers with the operation."""
        admit(gateway, request)
        if name == "latest" and (latest := operations.latest) is not None:
            name = latest.id
        return JSONResponse((await operations.cancel(name, _whose(gateway, request))).as_json())

    return routes


def _whose(gateway: Gateway, request: Request) -> str:
    """The client whose key it is; empty without `clients`."""
    client = identify_caller(gateway, caller_of(request.scope)).client
    return client.name if client is not None else ""


class FollowedLog(Response):
    """A log as text, until the reader leaves or stalls, or the gateway stops. Among the `followers` meanwhile."""

    media_type = "text/plain"

    def __init__(self, lines: Lines, stopping: Callable[[], bool], followers: set[FollowedLog]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._lines = lines
        self._stopping = stopping
        self._followers = followers

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.create_task(until_left(receive))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            self._followers.add(self)
            async with contextlib.aclosing(self._lines(lambda: left.done() or self._stopping())) as lines:
                async for line in lines:
                    async with asyncio.timeout(STALLED):
                        body = f"{line}\n".encode()
                        await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            pass
        finally:
            self._followers.discard(self)
            left.cancel()
