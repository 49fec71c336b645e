"""Operations on the fleet: `POST /admin/mode`, `POST /admin/backends/{name}/start | stop | restart`, `GET | DELETE
/admin/operations`. And its memory plan: `GET /status/plan`."""

from __future__ import annotations

from functools import partial

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from gateway.api.admin import admit, backend_of
from gateway.api.answering import body_of
from gateway.api.caller import caller_of, identify_caller
from gateway.apps.control.engine_logs import LINES_MOST, EngineLogs, unit_of
from gateway.apps.control.followed_log import FollowedLog
from gateway.apps.control.operations import Operations
from gateway.apps.control.plan_view import PlanView
from gateway.apps.control.record import Kind, described
from gateway.errors import GatewayError
from gateway.runtime.gateway import Gateway

BEGUN = 202


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
    view = PlanView()

    @routes.get("/status/plan")
    async def memory_plan(request: Request) -> JSONResponse:
        """The memory plan of the fleet, beside what the nodes hold."""
        identify_caller(gateway, caller_of(request.scope))
        answer = await view.read(gateway.snapshot, gateway.fleet.states, gateway.prober.machines)
        return JSONResponse(answer, headers={"cache-control": "no-store"})

    return routes


def router(gateway: Gateway, operations: Operations) -> APIRouter:
    """An operation that begins is answered with 202 and followed at `/admin/operations/{id}`."""
    routes = APIRouter(prefix="/admin")
    logs = EngineLogs()

    async def obey(request: Request, kind: Kind, name: str | None) -> Response:
        async with body_of(gateway, request) as body:
            order = _order(body)
        name = _mode_of(order) if name is None else name
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

    @routes.post("/backends/{name}/start")
    async def start_backend(request: Request, name: str) -> Response:
        """Start one backend, and wait until it serves. With another `profile`, it is stopped first."""
        admit(gateway, request)
        return await obey(request, "start", backend_of(gateway, name).name)

    @routes.post("/backends/{name}/stop")
    async def stop_backend(request: Request, name: str) -> Response:
        """Drain one backend, and stop it."""
        admit(gateway, request)
        return await obey(request, "stop", backend_of(gateway, name).name)

    @routes.post("/backends/{name}/restart")
    async def restart_backend(request: Request, name: str) -> Response:
        """Drain one backend, stop it, start it with the profile that it ran with, and wait until it serves."""
        admit(gateway, request)
        return await obey(request, "restart", backend_of(gateway, name).name)

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
            logs.check_room()
            return FollowedLog(partial(logs.follow, unit, backend, lines), lambda: gateway.stopping)
        return PlainTextResponse("".join(f"{line}\n" for line in await logs.read(unit, backend, lines)))

    @routes.get("/operations")
    async def latest(request: Request) -> Response:
        """`{mode, operation}`: the mode in force, and the operation under way or the last one; null = none."""
        admit(gateway, request)
        operation = operations.latest
        found = operation.as_json() if operation is not None else None
        return JSONResponse({"mode": gateway.snapshot.mode, "operation": found})

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


def _order(body: bytes) -> Order:
    if not body.strip():
        return Order()
    try:
        return msgspec.json.decode(body, type=Order)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GatewayError("invalid_request_body", f"The request body is not valid: {error}") from None


def _mode_of(order: Order) -> str:
    if not order.mode:
        raise GatewayError(
            "invalid_request_body", "`mode` is missing: the name of the mode to switch to.", param="mode"
        )
    return order.mode
